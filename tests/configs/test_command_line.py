"""The command line of train.py: what is refused and how, and what Hydra's flags print."""

import re
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from configs.compose import compose
from tests.configs.bad_overrides import BAD
from tests.parts import thin

TEXTS = {
    "zero.txt": b"",
    "latin.txt": b"caf\xe9 " * 999,
    "tiny.txt": b"ab",
    "no.txt.gz": b"ab",
    "bad.jsonl": b'{"text": "a"}\nnot json\n',
    "gap.tsv": b"source\ttarget\none\tone\n  \tx\n",
}


@pytest.mark.parametrize("typed, code, sentence", thin(BAD, BAD[::2]))
def test_refused_in_one_sentence(start, typed, code, sentence):
    """And nothing is left behind."""
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


@pytest.mark.quick
def test_cfg_job_prints_the_settings_of_a_command_line(start):
    """With those that follow from others; the order of flags and settings does not matter."""
    text = start.plainly("model=bert", "--cfg", "job", "train.epochs=3", "name=a b").out
    printed = OmegaConf.create(text)
    assert printed.train.steps is None and printed.name == "a b"
    assert printed.model == compose(["model=bert"]).model


def test_completion_in_a_shell(start, monkeypatch):
    monkeypatch.setenv("COMP_LINE", "python train.py model=gp")
    assert start.plainly("-sc", "query=bash").out.split() == ["model=gpt2"]


def test_an_option_of_ones_own(start):
    """With a folder of YAML files beside configs/."""
    own = Path("mine/attention/own.yaml")
    own.parent.mkdir(parents=True)
    command = ["--config-dir", "mine", "attention=own", "dry_run=true"]
    own.write_text("kind: mha\nbias: true\n")
    assert "must begin with the line '# @package ...'" in start(*command, code=2).err
    own.write_text("# @package model.attention\ndefaults:\n  - mqa\n")
    assert start(*command).out.startswith("model       decoder, ")
