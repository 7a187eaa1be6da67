"""Config: the files in configs/ and the words of a command line become one typed tree."""

import re
from dataclasses import dataclass
from pathlib import Path

import hydra
from hydra.errors import HydraException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from model.config import ModelConfig

CONFIGS = Path(__file__).parent.parent / "configs"


@dataclass
class Config:
    model: ModelConfig


def compose(words=()):
    """The config that `python train.py *words` would use."""
    try:
        with hydra.initialize_config_dir(str(CONFIGS), version_base="1.3"):
            config = hydra.compose("train", list(words))
        return OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(Config), config))
    except (HydraException, OmegaConfBaseException) as error:
        raise ValueError(sentence(error)) from None


def sentence(error):
    """What Hydra says over many lines, in one: with the key, without paths, types and false advice."""
    said = re.split(r"\n\s*(?:Config search path|See https|To append|full_key|object_type)", str(error))[0]
    key = error.full_key if isinstance(error, OmegaConfBaseException) else None
    return f"{key}: " * bool(key) + " ".join(said.split())
