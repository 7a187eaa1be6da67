"""Shared by the tests: the YAML files of each part, tiny random models, and errors to expect."""

from copy import deepcopy
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch
from omegaconf import OmegaConf

from configs.parts import LOADED
from configs.schema import EncoderSizes, ModelConfig
from model.attention import ATTENTIONS
from model.block import BLOCKS
from model.feedforward import FFNS
from model.norm import NORMS
from model.position import POSITIONS
from model.transformer import ARCHITECTURES as CLASSES
from model.transformer import build_model

ROOT = Path(__file__).parent.parent
CONFIGS = ROOT / "configs"
VOCABULARY = 23
TYPICAL = ["gpt2", "llama", "deepseek", "modern", "bert", "gemma3", "t5", "bart"]  # presets
ARCHITECTURES = ["decoder", "encoder", "encoder_decoder"]
PARTS = {
    "attention": ATTENTIONS,
    "position": POSITIONS,
    "norm": NORMS,
    "ffn": FFNS,
    "block": BLOCKS,
}


def names(group, folder=CONFIGS):
    return sorted(path.stem for path in (folder / group).glob("*.yaml"))


def thin(cases, usual):
    """The cases; those that are not usual are run by -m faults alone."""
    marked = []
    for case in cases:
        values = case if isinstance(case, tuple) else (case,)
        marks = () if case in usual else pytest.mark.faults
        marked.append(pytest.param(*values, marks=marks))
    return marked


def kinds(group, registry=None):
    """Those of ours, and of --parts, whose tests are found by -k mine."""
    every = registry or PARTS[group]
    ours = {part(group, name)["kind"] for name in names(group)}
    return [kind if kind in ours else pytest.param(kind, id=f"mine_{kind}") for kind in every]


def architectures(*but):
    own = [pytest.param(kind, id=f"mine_{kind}") for kind in CLASSES if kind not in ARCHITECTURES]
    ours = [kind for kind in ARCHITECTURES if kind not in but]
    return ours + [param for param in own if CLASSES[param.values[0]].kind not in but]


def config_folders():
    return [CONFIGS, *(path.parent / "configs" for path in LOADED)]


@cache
def loaded(group, name):
    paths = [folder / group / f"{name}.yaml" for folder in config_folders()]
    [path] = filter(Path.exists, paths)
    return OmegaConf.to_container(OmegaConf.load(path))


def part(group, name, /, **changes):
    """What a YAML file sets, with what it inherits from its neighbors."""
    options = deepcopy(loaded(group, name))
    for base in reversed(options.pop("defaults", [])):
        if base != "_self_":
            options = part(group, base.partition("@")[0]) | options
    return options | changes


def kind_options(group, kind):
    """The options of a kind: those of the YAML file of its name, or else of the first file with that kind."""
    known = [name for folder in config_folders() for name in names(group, folder)]
    files = [name for name in known if part(group, name).get("kind") == kind]
    assert files, f"configs/{group} has no YAML file with kind: {kind}"
    return part(group, kind if kind in files else files[0])


def refused(sentence, error=ValueError):
    """A block in which this error must be raised, with a sentence that matches."""
    return pytest.raises(error, match=sentence)


def tiny(kind="decoder", **changes):
    """A small config; `changes` are what a test is about."""
    cross_attention = None
    encoder = EncoderSizes(None, None, None)
    if kind in CLASSES and CLASSES[kind].kind == "encoder_decoder":
        cross_attention = part("attention", "mha_nobias")
        encoder = EncoderSizes(40, 3, 2)
    head = dict.fromkeys(("tie_weights", "bias", "scale_by_inv_sqrt_d"), False)
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
        cross_attention=cross_attention,
        ffn=part("ffn", "gelu"),
        head=head | {"logit_softcap": None, "mlm_transform": None},
        encoder=encoder,
        init="gpt2",
    )
    return replace(config, **changes)


def randomize(model, scale=0.15):
    """Draw every parameter that is trained at random, so that no zero or one hides an error."""
    generator = torch.Generator().manual_seed(0)
    for weight in filter(lambda weight: weight.requires_grad, model.parameters()):
        noise = scale * torch.randn(weight.shape, generator=generator, dtype=weight.dtype)
        weight.data = noise if weight.ndim > 1 else weight.data + noise
    return model.eval()


def alive(config, vocabulary=VOCABULARY):
    """A model in float64 with random weights."""
    return randomize(build_model(config, vocabulary).double(), scale=0.3)


def tokens(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(1, VOCABULARY, shape, generator=generator)
