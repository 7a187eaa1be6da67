"""The command line of train.py: what is refused and how, and what Hydra's flags print."""

import re
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from configs.compose import CONFIGS, compose
from tests.configs.bad_overrides import BAD
from tests.parts import names, thin

TEXTS = {
    "zero.txt": b"",
    "latin.txt": b"caf\xe9 " * 999,
    "tiny.txt": b"ab",
    "no.txt.gz": b"ab",
    "bad.jsonl": b'{"text": "a"}\nnot json\n',
    "gap.txt": b"one\n  \ntwo\n" * 50,
    "three.txt": b"one\nx\ntwo\n" * 50,
}


@pytest.mark.parametrize(("typed", "code", "sentence"), thin(BAD, BAD[::2]))
def test_refused_in_one_sentence(start, typed, code, sentence):
    """And nothing is left behind."""
    Path("empty").mkdir()
    if code == 3:
        for name, text in TEXTS.items():
            Path(name).write_bytes(text)
    stderr = start(*typed.split(), code=code).err
    assert re.search(f"error: .*{sentence}", stderr), stderr
    assert "Traceback" not in stderr and stderr.count("error: ") == 1
    if not typed.startswith("-m"):
        assert len(stderr) < 500 and (code == 3 or stderr.count("\n") == 1)
        assert not list(Path("runs").glob("*"))


@pytest.mark.quick
def test_debug_shows_the_traceback(start):
    stderr = start("name=a/b/c", "debug=true", code=2).err
    assert "Traceback" in stderr
    assert stderr.splitlines()[-1].startswith("error: name is 'a/b/c'")


@pytest.mark.parametrize("setting", ["data.path", "data.cache", "init_from"])
def test_a_user_who_does_not_exist(start, setting):
    with_usual = start.plainly if setting == "init_from" else start
    stderr = with_usual(f"{setting}=~no-such-user/x", code=2).err
    assert "cannot expand ~ in ~no-such-user" in stderr
    assert not list(Path().glob("~*"))


@pytest.mark.quick
def test_help_lists_the_groups_on_one_screen(start):
    text = start.plainly("--help").out
    assert "hydra" not in text
    assert max(map(len, text.splitlines())) <= 80
    unwrapped = text.replace("\n  ", " ")
    for group in {path.parent.name for path in CONFIGS.glob("*/*.yaml")}:
        assert f"\n{group}: {', '.join(names(group))}\n" in unwrapped


@pytest.mark.quick
def test_cfg_job_prints_the_settings_of_a_command_line(start):
    """With those that follow from others; the order of flags and settings does not matter."""
    text = start.plainly("model=bert", "--cfg", "job", "train.epochs=3", "name=a b").out
    printed = OmegaConf.create(text)
    assert printed.train.steps is None and printed.name == "a b"
    assert printed.model == compose(["model=bert"]).model


@pytest.mark.parametrize(
    ("words", "answer"),
    [("model=gp", ["model=gpt2"]), ("optimizer.l", ["optimizer.lr="])],
)
def test_completion_in_a_shell(start, monkeypatch, words, answer):
    monkeypatch.setenv("COMP_LINE", f"python train.py {words}")
    assert start.plainly("-sc", "query=bash").out.split() == answer


def test_an_option_of_ones_own(start):
    """With a folder of YAML files beside configs/."""
    own = Path("mine/attention/own.yaml")
    own.parent.mkdir(parents=True)
    command = ["--config-dir", "mine", "attention=own", "dry_run=true"]
    own.write_text("kind: mha\nbias: true\n")
    assert "must begin with the line '# @package ...'" in start(*command, code=2).err
    own.write_text("# @package model.attention\ndefaults:\n  - mqa\n")
    assert start(*command).out.startswith("model       decoder, ")
