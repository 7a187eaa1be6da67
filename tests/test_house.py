"""The structure of the project: imports only go down; each kind has a YAML file with all its
options."""

import ast
import sys
from graphlib import TopologicalSorter

import pytest

from configs.registry import signature
from data.objectives import OBJECTIVES
from data.sources import SOURCES
from data.tokenizers.train import TOKENIZERS
from model.adapt import ADAPTS
from model.position import SCALINGS
from tests.parts import CONFIGS, PARTS, ROOT, names, part
from training.optimizer import OPTIMIZERS
from training.schedule import SCHEDULES

FOLDERS = ("configs", "data", "model", "training")  # each imports only itself and those before it
FILES = [ROOT / "train.py", ROOT / "sample.py"]
FILES += sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))
# the network and its decoding
NETWORK = "transformer block attention attend cache position norm feedforward moe embedding init layers loss"
CORE = {f"model.{name}" for name in [*NETWORK.split(), "linear", "cpu", "cuda", "inference"]}
CORE |= {"model", "configs.registry", "configs.schema", "model.generate"}
CORE |= {f"model.generate.{name}" for name in ("decode", "sampling", "beams")}
USE_DATA = ("model.hub", "model.checkpoint")
USE_DATA += tuple(f"model.generate.{name}" for name in ("prompt", "options", "stream"))
DATA = "numpy torch tiktoken tiktoken_ext tokenizers datasets huggingface_hub pyarrow requests rich"
MODEL = "torch safetensors tokenizers huggingface_hub yaml omegaconf matplotlib rich transformers"
LIBRARIES = {
    "configs": {"hydra", "omegaconf"},
    "data": {*DATA.split(), "filelock", "jinja2"},
    "model": {*MODEL.split(), "filelock"},
}
SLOW = {"datasets", "tokenizers", "huggingface_hub", "requests", "wandb", "matplotlib"}
SLOW |= {"transformers"}


def module_name(path):
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path): path for path in FILES}
pytestmark = pytest.mark.quick
every_module = pytest.mark.parametrize("module", MODULES)


def imports(module):
    """(the imported module, whether at the top of the file) for each import."""
    tree = ast.parse(MODULES[module].read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node in tree.body) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                yield inner if inner in MODULES else node.module, node in tree.body


@every_module
def test_imports_go_down(module):
    folder = module.split(".")[0]
    below = {"train": FOLDERS, "sample": FOLDERS[:3]}
    below |= {name: FOLDERS[: i + 1] for i, name in enumerate(FOLDERS)}
    if module == "data.__main__":  # a command, which also previews what a fine-tuning will see
        below["data"] = FOLDERS
    for imported, at_top in imports(module):
        package = imported.split(".")[0]
        assert package in below[folder] or package not in below, imported
        if folder == "model" and not module.startswith(USE_DATA):
            assert package != "data", imported
        if module in CORE:  # it can be copied into another project
            assert imported in CORE or package in {"torch", *sys.stdlib_module_names}, imported
        known = package in {*FOLDERS, *sys.stdlib_module_names, *LIBRARIES.get(folder, (package,))}
        assert known, f"{imported} is not among the libraries of {folder}/"
        assert not (at_top and package in SLOW), f"{imported} is slow: import it where it is used"


def test_imports_have_no_cycles():
    graph = {module: {name for name, _ in imports(module) if name in MODULES} for module in MODULES}
    TopologicalSorter(graph).prepare()


REGISTRIES = PARTS | {"data": SOURCES, "tokenizer": TOKENIZERS, "objective": OBJECTIVES}
REGISTRIES |= {"optimizer": OPTIMIZERS, "schedule": SCHEDULES, "adapt": ADAPTS}
# what the parent passes in, and so no config sets
SHARED = {
    "attention": {"d_model", "n_heads", "memory", "norm", "dropout", "layer", "n_layers"},
    "position": {"d_model", "n_heads", "context_length", "causal", "rotary_dim"},
    "norm": {"width"},
    "ffn": {"d_model", "layer", "n_layers"},
    "block": {"attention", "ffn", "cross", "norm", "dropout", "layer", "n_layers"},
    "data": {"cache", "val_fraction", "document_mask"},  # settings of all, in train.yaml
    "objective": {"context_length", "architecture", "prefix_lm", "document_mask"},
    "optimizer": {"model"},
    "adapt": {"model", "seed"},
    "schedule": {"steps"},
}
FILES_OF_KINDS = [
    (g, name) for g in REGISTRIES for name in names(g) if (g, name) != ("objective", "auto")
]


@pytest.mark.parametrize("group", REGISTRIES)
def test_every_kind_has_a_yaml_file(group):
    files = [part(group, name) for name in names(group)]
    assert {options["kind"] for options in files} - {"auto"} == set(REGISTRIES[group])
    if group == "position":
        assert {options["scaling"]["kind"] for options in files if "scaling" in options} == set(
            SCALINGS
        )


@pytest.mark.parametrize(("group", "name"), FILES_OF_KINDS)
def test_every_yaml_file_has_every_option_of_its_kind(group, name):
    options = part(group, name)
    options.pop("val_fraction", None)  # which some data sets, too
    kind = options.pop("kind")
    assert set(options) == signature(REGISTRIES[group][kind]).keys() - SHARED.get(group, set())
    if "scaling" in options:
        kind = options["scaling"].pop("kind")
        assert set(options["scaling"]) == signature(SCALINGS[kind]).keys()


def test_every_yaml_file_starts_with_a_description():
    for path in CONFIGS.rglob("*.yaml"):
        text = path.read_text(encoding="utf-8").splitlines()
        lines = [line for line in text if not line.startswith("# @package")]
        assert lines[0].startswith("# ") and len(lines[0].split()) > 1, path
