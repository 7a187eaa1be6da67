"""Config: the files in configs/ and the words of a command line become one typed tree."""

from dataclasses import dataclass
from pathlib import Path

import hydra
from omegaconf import OmegaConf

from model.config import ModelConfig

CONFIGS = Path(__file__).parent.parent / "configs"


@dataclass
class Config:
    model: ModelConfig


def compose(words=()):
    """The config that `python train.py *words` would use."""
    with hydra.initialize_config_dir(str(CONFIGS), version_base="1.3"):
        config = hydra.compose("train", list(words))
    return OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(Config), config))
