"""A command line becomes a typed config; tests/faults/test_bad_inputs.py has those that are refused."""

import os
import shutil
import subprocess
import sys
from contextlib import suppress
from typing import Annotated

import pytest
from omegaconf import OmegaConf

from configs import compose as composing
from configs.compose import (
    VERBATIM,
    compose,
    compose_raw,
    expand_sweep,
    flatten,
    resolve,
    to_config,
)
from configs.registry import Bounds, Count, Positive, Ratio, describe_type
from data.sources import SOURCES
from model.hub.convert import init_config
from tests.parts import ROOT, names
from training.plan import check_parts
from training.resume import unflatten
from training.sweep import launch

NUMBERS = [key for key, value in flatten(compose_raw(())).items() if type(value) in (int, float)]
NUMBERS += [
    f"model.attention.{key}"
    for key in ("head_dim", "v_head_dim", "sliding_window", "logit_softcap")
]
NUMBERS += ["model.head.logit_softcap", "model.position.rope_theta", "model.ffn.d_ff"]


@pytest.mark.parametrize("number", [10**40, 10**9, 1e308, -1e308, float("nan")])
def test_every_number_is_bounded(number):
    """What torch cannot count, and what no memory can hold, is refused before anything is allocated."""
    config = flatten(compose_raw(["position=rope"]))
    for key in NUMBERS:
        with suppress(ValueError, MemoryError):
            check_parts(to_config(unflatten(config | {key: number})))
            assert number == 10**9, f"{key} may be {number}"


def test_a_model_needs_memory():
    for width, sentence in ((1 << 23, "the weights need .* GiB"), (2**31, "fits in no memory")):
        with pytest.raises(MemoryError, match=sentence):
            check_parts(compose([f"model.d_model={width}"]))


@pytest.mark.parametrize(
    ("annotation", "description"),
    [
        (Count, "an integer at least 1"),
        (Positive | None, "a number above 0 or null"),
        (Ratio, "a number above 0 and below 1"),
        (Annotated[float, Bounds(above=0, most=5)], "a number above 0 and at most 5"),
        (Annotated[str, ("a", "b")], "one of: a, b"),
        (bool | Annotated[str, ("auto",)], "true or false or auto"),
        (list[str], "a list of strings"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_types_are_described_in_plain_english(annotation, description):
    assert describe_type(annotation) == description


@pytest.mark.parametrize("source", names("data"))
def test_objective_auto_fits_data_and_model(source):
    kind = OmegaConf.load(ROOT / f"configs/data/{source}.yaml").get("kind", "hub")
    text = (ROOT / f"configs/data/{source}.yaml").read_text()
    required = [
        f"data.{key}=x" for key in ("path", "id", "source", "target") if f"{key}: ???" in text
    ]
    for model, of_text in (("modern", "next_token"), ("bert", "masked"), ("t5", "span")):
        config = compose([f"data={source}", f"model={model}", *required])
        assert config.objective["kind"] == (
            "pairs" if SOURCES[kind].input_kind == "pairs" else of_text
        )


PATHS = [
    "a b (1).txt",
    "a=b.txt",
    "a,b",
    "书.txt",
    "it's",
    "end\\",
    "${x}",
    r"\${oc.env:HOME}",
    "[1]",
    "",
]


@pytest.mark.parametrize("path", PATHS)
def test_paths_and_names_are_taken_as_typed(path):
    kinds = ("text", "text", "hub", "parallel", "parallel", "text", "text")
    for key, kind in zip(VERBATIM, kinds, strict=True):
        required = {"text": ["path"], "hub": ["id"], "parallel": ["source", "target"]}[kind]
        others = [f"data.{name}=x" for name in required if f"data.{name}" != key]
        assert flatten(compose_raw([f"data={kind}", *others, f"{key}={path}"]))[key] == path


@pytest.mark.parametrize(
    "name", ["2024_01_02", "1e5", "0x10", "1_000", "true", "007", "null.x", "é"]
)
def test_a_name_that_looks_like_a_number_stays_a_name(name):
    assert compose([f"name={name}"]).name == name
    assert expand_sweep([f"name={name},b"]) == [[f"name={name}"], ["name=b"]]


def test_a_sweep_is_every_combination(tmp_path):
    (tmp_path / "a,b").touch()
    one = f"data.path={tmp_path}/a,b"
    jobs = expand_sweep(["model=gpt2,llama", "size=tiny", "train.steps=range(1,3)", one])
    assert jobs == [
        [f"model={model}", "size=tiny", f"train.steps={steps}", one]
        for model in ("gpt2", "llama")
        for steps in (1, 2)
    ]
    assert expand_sweep(["data.path=c,d e"]) == [["data.path=c"], ["data.path=d e"]]
    assert expand_sweep(["model=glob(b*)"]) == [["model=bart"], ["model=bert"]]


def test_an_option_of_ones_own_names_its_place(tmp_path, monkeypatch):
    """Hydra would compose it as the setting `attention`."""
    shutil.copytree(composing.CONFIGS / "attention", tmp_path / "attention")
    own = tmp_path / "attention/a.yaml"  # the first of them
    own.write_text("kind: mha\n")
    monkeypatch.setattr(composing, "CONFIGS", tmp_path)
    monkeypatch.setattr(composing, "groups", composing.groups.__wrapped__)
    with pytest.raises(
        ValueError, match=f"{own} must begin with the line '# @package model.attention'"
    ):
        compose(["attention=a"])
    own.write_text("# @package model.attention\nkind: mha\n")
    composing.check_override("attention=a")


def test_init_from_replaces_model_and_tokenizer():
    def origin(place):
        assert place == "runs/a"
        return {"model": compose_raw(["model=bert"])["model"], "tokenizer": {"kind": "byte"}}

    config = compose(["init_from=runs/a"], origin)
    assert config.model.kind == "encoder" and config.objective["kind"] == "masked"
    assert config.tokenizer == {"kind": "byte"}
    with pytest.raises(ValueError, match="size=tiny conflicts with init_from"):
        compose(["init_from=runs/a", "size=tiny"], origin)
    with pytest.raises(ValueError, match="only train.py takes init_from"):
        compose(["init_from=runs/a"])


def test_cfg_job_prints_the_config_of_a_command_line():
    args = ["model=bert", "objective.mask_prob=0.3", "data=text", "data.path=a b"]
    command = [sys.executable, ROOT / "train.py", "--cfg", "job", *args]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert OmegaConf.to_container(OmegaConf.create(text)) == resolve(args, init_config)[0]


def test_help_lists_groups_and_settings_with_their_comments(capsys):
    assert launch(None, None, ["--help"]) == 0
    text = capsys.readouterr().out
    for group in (
        path.name for path in (ROOT / "configs").iterdir() if path.is_dir() and names(path.name)
    ):
        assert f"\n{group}: {', '.join(names(group))}\n" in text
    yaml = (ROOT / "configs/train.yaml").read_text()
    for first, end in (("name", "model"), ("train", "plan")):
        assert yaml[yaml.index(f"\n{first}:") : yaml.index(f"\n{end}:")].rstrip() in text
    assert len(text.splitlines()) < 56, "it fits a screen"
    assert "hydra" not in text


def test_completion_in_a_shell():
    """Hydra's own; a setting that is not whole must not be an error."""
    for words, answer in (("model=g", "model=gpt2"), ("optimizer.l", "optimizer.lr=")):
        command = [sys.executable, ROOT / "train.py", "-sc", "query=bash"]
        environment = os.environ | {"COMP_LINE": f"python train.py {words}"}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        assert done.stdout.split() == [answer]
