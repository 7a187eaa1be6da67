"""The structure of the project: imports only go down; each kind has a YAML file with all its
options."""

import ast
import sys
from graphlib import TopologicalSorter

import pytest

from configs.registry import parameters_of
from data.mix import SOURCES
from data.objectives import OBJECTIVES
from data.tokenizers.train import TRAINERS
from model.adapt import ADAPTS
from model.cross import CROSS_ATTENTIONS
from model.position import SCALINGS
from tests.parts import PARTS, ROOT, names, part
from training.optimizer import OPTIMIZERS
from training.schedule import SCHEDULES

FOLDERS = ("configs", "data", "model", "training")
ORDER = ("configs", "data", "model", "sample", "training", "train")  # each imports those before it
FILES = [ROOT / "train.py", ROOT / "sample.py"]
for folder in FOLDERS:
    FILES += sorted((ROOT / folder).rglob("*.py"))
# the network and its decoding: they can be copied into another project
CORE_MODULES = """
    configs.registry configs.describe configs.schema model model.transformer model.encoders model.block model.attention model.attend model.masks
    model.cache model.position model.norm model.feedforward model.moe model.embedding model.mlm model.init
    model.stack model.blocks model.bigrams model.cross model.mla model.positions model.rope_scaling model.layers model.loss model.linear model.cpu model.cuda model.inference
    model.generate model.generate.decode model.generate.padding model.generate.replay model.generate.sampling model.generate.filters model.generate.beams
"""
CORE = set(CORE_MODULES.split())
USE_DATA_MODULES = """
    model.hub model.checkpoint model.save model.frozen model.pretrained
    model.generate.text model.generate.marks model.generate.options model.generate.conversation model.generate.serve
"""
USE_DATA = tuple(USE_DATA_MODULES.split())


def module_name(path):
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path): path for path in FILES}
pytestmark = pytest.mark.quick


def imports(module):
    """The modules that it imports, anywhere in its file."""
    for node in ast.walk(ast.parse(MODULES[module].read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                yield inner if inner in MODULES else node.module


@pytest.mark.parametrize("module", MODULES)
def test_imports_go_down(module):
    folder = module.split(".")[0]
    above = {"sample", "train", *ORDER[ORDER.index(folder) + 1 :]}
    if module == "data.__main__":  # a command, which also previews what a fine-tuning will see
        above -= {*FOLDERS}
    if folder == "model" and not module.startswith(USE_DATA):
        above.add("data")
    for imported in imports(module):
        package = imported.split(".")[0]
        assert package not in above, imported
        if module in CORE:
            assert imported in CORE or package in {"torch", *sys.stdlib_module_names}, imported


def test_imports_have_no_cycles():
    graph = {module: MODULES.keys() & imports(module) for module in MODULES}
    TopologicalSorter(graph).prepare()


REGISTRIES = PARTS | {"data": SOURCES, "tokenizer": TRAINERS, "objective": OBJECTIVES}
REGISTRIES |= {"optimizer": OPTIMIZERS, "schedule": SCHEDULES, "adapt": ADAPTS}
# what the parent passes in, and so no config sets
SHARED = {
    "attention": {"d_model", "n_heads", "memory", "norm", "dropout", "layer", "n_layers"},
    "position": {"d_model", "n_heads", "context_length", "causal", "rotary_dim"},
    "norm": {"width"},
    "ffn": {"d_model", "layer", "n_layers"},
    "block": {"d_model", "attention", "ffn", "cross", "norm", "dropout", "layer", "n_layers"},
    "data": {"cache", "val_fraction", "document_mask"},  # settings of all, in train.yaml
    "objective": {"context_length", "architecture", "document_mask", "classes"},
    "optimizer": {"model"},
    "adapt": {"model", "seed"},
    "schedule": {"steps"},
}
OPTIONS = [(group, name) for group in REGISTRIES for name in names(group)]
OPTIONS.remove(("objective", "auto"))


@pytest.mark.parametrize("group", REGISTRIES)
def test_every_kind_has_a_yaml_file(group):
    options = [part(group, name) for name in names(group)]
    assert {option["kind"] for option in options} - {"auto"} == set(REGISTRIES[group])
    if group == "position":
        scalings = [option["scaling"]["kind"] for option in options if "scaling" in option]
        assert set(scalings) == set(SCALINGS)


@pytest.mark.parametrize("group, name", OPTIONS)
def test_every_yaml_file_has_every_option_of_its_kind(group, name):
    options = part(group, name)
    options.pop("val_fraction", None)  # which some data sets, too
    kind = options.pop("kind")
    own = REGISTRIES[group][kind]
    expected = {*parameters_of(own)} - SHARED.get(group, set())
    if kind in CROSS_ATTENTIONS:
        expected |= {"kdim", "vdim"}
    assert set(options) == expected
    if "scaling" in options:
        kind = options["scaling"].pop("kind")
        assert options["scaling"].keys() == parameters_of(SCALINGS[kind]).keys()
