"""A command line or text that cannot be used: an exit code and one sentence, before the first step."""

import re
from pathlib import Path

import pytest

from tests.configs.bad_overrides import BAD

FILES = {
    "zero.txt": b"",
    "nul.txt": b"a\0b" * 999,
    "latin.txt": b"caf\xe9 " * 999,
    "tiny.txt": b"ab",
    "bad.jsonl": b'{"text": "a"}\nnot json\n',
    "other.jsonl": b'{"other": "a"}\n',
    "number.jsonl": b'{"text": 3}\n',
    "null.jsonl": b'{"text": null}\n',
    "two.txt": b"one\ntwo\n",
    "one.txt": b"one\n",
    "gap.txt": b"one\n\ntwo\n" * 50,
    "three.txt": b"one\nx\ntwo\n" * 50,
}


@pytest.mark.parametrize(
    ("overrides", "code", "sentence"), BAD, ids=[overrides for overrides, _, _ in BAD]
)
def test_refused_in_one_sentence(start, overrides, code, sentence):
    for name, data in FILES.items():
        Path(name).write_bytes(data)
    Path("empty").mkdir()
    exit_code, _, stderr = start(*overrides.split())
    errors = [line for line in stderr.splitlines() if line.startswith("error: ")]
    assert exit_code == code and len(errors) == 1 and re.search(sentence, errors[0]), stderr
    assert "Traceback" not in stderr and len(errors[0]) < 500 and not list(Path("runs").glob("*"))


@pytest.mark.parametrize("place", ["none", "book.txt", "."])
def test_init_from_something_that_is_not_a_run(start, place):
    code, _, stderr = start.plainly(f"init_from={place}")
    sentence = (
        "no such run: none"
        if place == "none"
        else "is not the folder of a run: it has no config.yaml"
    )
    assert code == 4 and sentence in stderr


def test_init_from_resume_as_in_nanogpt(start):
    code, _, stderr = start.plainly("init_from=resume")
    assert code == 2 and "to continue one, use name=... resume=true" in stderr


def test_incomplete_torchrun_environment(start, monkeypatch):
    monkeypatch.setenv("RANK", "0")
    code, _, stderr = start()
    assert code == 2 and "WORLD_SIZE is not set" in stderr


def test_a_runs_folder_that_cannot_be_written(start):
    Path("runs").write_text("a file")
    code, _, stderr = start()
    assert code == 6 and stderr.count("error: ") == 1 and "runs" in stderr
