"""The house: who may import whom, how large a room may be; every kind has a yaml, every yaml a kind."""

import ast
import sys
from pathlib import Path

import pytest

from configs.registry import config_options
from data import OBJECTIVES, SOURCES, TOKENIZERS
from model.attention import ATTENTIONS
from model.block import BLOCKS
from model.feedforward import FFNS
from model.norm import NORMS
from model.position import POSITIONS, SCALINGS
from tests.data.corpora import options_of
from tests.parts import ROOT, names, part
from training.optimizer import OPTIMIZERS
from training.schedule import SCHEDULES

OWN = ("model", "data", "training")
FILES = sorted(
    [ROOT / "train.py", ROOT / "sample.py", *(p for folder in OWN for p in (ROOT / folder).rglob("*.py"))]
)
COMMANDS = {
    "train.py",
    "sample.py",
    "model/shapes.py",
    "model/hub/__main__.py",
    "data/__main__.py",
    "training/compare.py",
}
LAZY = {"datasets", "tokenizers", "huggingface_hub", "requests", "wandb", "matplotlib", "transformers"}
STANDARD = set(sys.stdlib_module_names)
MAY_IMPORT = {
    "model": {"torch", "model"},
    "model/hub": {"torch", "model", "safetensors", "tokenizers", "huggingface_hub"},
    "data": {"numpy", "torch", "tiktoken", "tiktoken_ext", "requests", "data"}
    | {"datasets", "tokenizers", "huggingface_hub"},
    "training": {"*"},
}


def room(path):
    return str(path.relative_to(ROOT))


def module_name(path):
    return room(path).removesuffix(".py").removesuffix("/__init__").replace("/", ".")


MODULES = {module_name(path) for path in FILES}


def imports(tree):
    """(module, at the top of the file) for each import."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node in tree.body) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports say the whole name"
            for alias in node.names:
                inside = f"{node.module}.{alias.name}"
                yield inside if inside in MODULES else node.module, node in tree.body


@pytest.mark.parametrize("path", FILES, ids=room)
def test_imports_keep_their_direction(path):
    if room(path) in COMMANDS:
        return
    folder = "model/hub" if room(path).startswith("model/hub") else room(path).split("/")[0]
    for module, at_top in imports(ast.parse(path.read_text())):
        package = module.split(".")[0]
        allowed = MAY_IMPORT[folder]
        assert package in allowed | STANDARD or "*" in allowed, f"{room(path)} imports {module}"
        assert not (at_top and package in LAZY), f"{room(path)} imports {module} before it is needed"
        if package in ("wandb", "matplotlib"):
            assert room(path).startswith("training/monitor"), f"{room(path)} imports {module}"


def test_imports_make_no_circle_and_no_tower():
    graph = {}
    for path in FILES:
        named = imports(ast.parse(path.read_text()))
        graph[module_name(path)] = {module for module, _ in named if module.split(".")[0] in OWN}

    def depth(module, above=()):
        assert module not in above, f"circle: {' -> '.join((*above, module))}"
        below = max((depth(m, (*above, module)) for m in graph.get(module, ())), default=0)
        return below + (module not in ("model", "model.hub", "data"))  # a door is no floor

    for module in graph:
        assert depth(module) <= 6 + (module.replace(".", "/") + ".py" in COMMANDS), (
            f"{module} stands on too many"
        )


@pytest.mark.parametrize("path", FILES, ids=room)
def test_rooms_stay_small(path):
    text = path.read_text()
    assert len(text.splitlines()) <= 300
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef):
            assert node.end_lineno - node.lineno < 50, f"{room(path)}: {node.name} is too long"


DECODING = {"generate.py", "sampling.py", "beams.py"}


def test_the_models_stay_readable_in_one_sitting():
    files = [p for p in (ROOT / "model").rglob("*.py") if "hub" not in p.relative_to(ROOT).parts]
    lines = {p.name: len(p.read_text().splitlines()) for p in files}
    assert sum(n for name, n in lines.items() if name not in DECODING) < 1800
    assert sum(lines[name] for name in DECODING) < 500


GROUPS = {
    "attention": ATTENTIONS,
    "position": POSITIONS,
    "norm": NORMS,
    "ffn": FFNS,
    "block": BLOCKS,
    "data": SOURCES,
    "tokenizer": TOKENIZERS,
    "objective": OBJECTIVES,
    "optimizer": OPTIMIZERS,
    "schedule": SCHEDULES,
}
SHARED = {
    "attention": {"d_model", "n_heads", "memory", "norm", "dropout"},
    "position": {"d_model", "n_heads", "context_length", "causal", "rotary_dim"},
    "norm": {"width"},
    "ffn": {"d_model"},
    "block": {"attention", "ffn", "cross", "norm", "dropout"},
    "data": {"cache"},
    "tokenizer": set(),
    "objective": {"context_length", "architecture"},
    "optimizer": set(),
    "schedule": {"steps"},
}


@pytest.mark.parametrize("group", GROUPS)
def test_every_kind_has_a_yaml(group):
    kinds = {options_of(group, name)["kind"] for name in names(group)}
    assert kinds - {"auto"} == set(GROUPS[group])


@pytest.mark.parametrize(
    ("group", "name"), [(g, n) for g in GROUPS for n in names(g) if (g, n) != ("objective", "auto")]
)
def test_every_yaml_has_every_option_of_its_kind(group, name):
    options = options_of(group, name)
    kind = options.pop("kind")
    assert set(options) == set(config_options(GROUPS[group][kind], SHARED[group]))
    if "scaling" in options:
        kind = options["scaling"].pop("kind")
        assert set(options["scaling"]) == set(config_options(SCALINGS[kind], {}))


def test_every_scaling_has_a_yaml():
    ropes = [part("position", name) for name in names("position") if name.startswith("rope")]
    assert {rope["scaling"]["kind"] for rope in ropes} == set(SCALINGS)


@pytest.mark.parametrize("path", sorted(Path(ROOT / "configs").rglob("*.yaml")), ids=room)
def test_every_yaml_says_what_it_is(path):
    lines = [line for line in path.read_text().splitlines() if not line.startswith("# @package")]
    assert lines[0].startswith("# "), "the first line is a sentence"
