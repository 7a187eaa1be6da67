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
    """start(*overrides, code=0): what a run in this process, which ends with this exit code, prints:
    .out and .err; start.plainly leaves out the usual overrides."""

    def plainly(*arguments, code=0):
        found = train(*arguments)
        printed = capsys.readouterr()
        assert found == code, printed.err
        return printed

    def start(*overrides, code=0):
        return plainly(*with_usual(overrides), code=code)

    start.plainly = plainly
    return start


@pytest.fixture
def run(start):
    """run(*overrides) -> the folder of the new run"""

    def run(*overrides):
        before = set(Path("runs").glob("*"))
        start(*overrides)
        [folder] = set(Path("runs").glob("*")) - before
        return folder

    return run
