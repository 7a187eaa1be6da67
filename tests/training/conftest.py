"""Runs as a user starts them, in a folder of their own, with a small text."""

from pathlib import Path

import pytest

from tests.training.runs import TEXT, train, with_usual


@pytest.fixture
def room(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("book.txt").write_text(TEXT)
    return tmp_path


@pytest.fixture
def start(room, capsys):
    """start(*overrides) -> (exit code, stdout, stderr), in this process; start.plainly leaves out
    the usual overrides."""

    def plainly(*arguments):
        code = train(*arguments)
        return code, *capsys.readouterr()

    def start(*overrides):
        return plainly(*with_usual(overrides))

    start.plainly = plainly
    return start


@pytest.fixture
def run(start):
    """run(*overrides) -> the folder of the new run"""

    def run(*overrides):
        before = set(Path("runs").glob("*"))
        code, _, errors = start(*overrides)
        assert code == 0, errors
        [folder] = set(Path("runs").glob("*")) - before
        return folder

    return run
