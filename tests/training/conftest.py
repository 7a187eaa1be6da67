"""Runs as a user starts them, in a folder of their own, with a small text."""

from pathlib import Path

import pytest

from tests.training.runs import TEXT, with_usual
from train import asked_for, main
from training.sweep import launch


@pytest.fixture
def room(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("book.txt").write_text(TEXT)
    return tmp_path


@pytest.fixture
def start(room, capsys):
    """(exit code, what was printed, what was said on stderr) of these words"""

    def plainly(*words):
        code = launch(main, asked_for, words)
        return code, *capsys.readouterr()

    def started(*words):
        return plainly(*with_usual(words))

    started.plainly = plainly  # without the usual words, which a run that goes on has already
    return started


@pytest.fixture
def run(start):
    """The folder that these words made."""

    def done(*words):
        before = set(Path("runs").glob("*"))
        code, _, said = start(*words)
        assert code == 0, said
        [folder] = set(Path("runs").glob("*")) - before
        return folder

    return done
