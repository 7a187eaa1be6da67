"""What the tests share: the yaml files of each part, and tiny models whose weights are all alive."""

from dataclasses import replace
from functools import cache
from pathlib import Path

import torch
from omegaconf import OmegaConf

from configs.schema import EncoderSizes, ModelConfig
from model import build_model

ROOT = Path(__file__).parent.parent
CONFIGS = ROOT / "configs"
VOCABULARY = 23


def names(group):
    return sorted(path.stem for path in (CONFIGS / group).glob("*.yaml"))


@cache
def loaded(group, name):
    return OmegaConf.load(CONFIGS / group / f"{name}.yaml")


def part(group, name, /, **changes):
    return OmegaConf.to_container(loaded(group, name)) | changes


def tiny(kind="decoder", **changes):
    """A small config; what a test is about goes into `changes`."""
    config = ModelConfig(
        kind=kind,
        d_model=32,
        n_layers=2,
        n_heads=4,
        context_length=16,
        dropout=0.0,
        embedding={"scale_by_sqrt_d": False, "type_vocab_size": 0},
        embedding_norm=False,
        position=part("position", "learned"),
        block=part("block", "pre"),
        norm=part("norm", "layernorm"),
        attention=part("attention", "mha"),
        cross_attention=part("attention", "mha_nobias") if kind == "encoder_decoder" else None,
        ffn=part("ffn", "gelu"),
        head={
            "tie_weights": False,
            "bias": False,
            "scale_by_inv_sqrt_d": False,
            "logit_softcap": None,
            "mlm_transform": None,
        },
        encoder=EncoderSizes(40, 3, 2) if kind == "encoder_decoder" else EncoderSizes(None, None, None),
        init="gpt2",
    )
    return replace(config, **changes)


def alive(config, vocabulary=VOCABULARY):
    """A model in float64 with every parameter drawn anew, so that nothing hides behind a zero or a one."""
    model = build_model(config, vocabulary).double().eval()
    draw = torch.Generator().manual_seed(1)
    for parameter in model.parameters():
        noise = torch.randn(parameter.shape, generator=draw, dtype=torch.float64)
        parameter.data = parameter.data * (0.5 if parameter.ndim < 2 else 0) + 0.3 * noise
    return model


def tokens(*shape, seed=0):
    return torch.randint(1, VOCABULARY, shape, generator=torch.Generator().manual_seed(seed))
