"""Runs as a user starts them, in a folder of their own, with a small text."""

import signal
import sys
from pathlib import Path

import pytest

from configs.cli import run_hydra
from tests.training.runs import TEXT, with_usual
from train import main
from training.distributed import STOP_SIGNALS


@pytest.fixture
def room(tmp_path, monkeypatch):
    handlers = {number: signal.getsignal(number) for number in STOP_SIGNALS}
    monkeypatch.chdir(tmp_path)
    Path("book.txt").write_text(TEXT)
    yield tmp_path
    for number, handler in handlers.items():
        signal.signal(number, handler)


@pytest.fixture
def start(room, monkeypatch, capsys):
    """start(*overrides) -> (exit code, stdout, stderr), in this process; start.plainly leaves out
    the usual overrides."""

    def plainly(*arguments):
        monkeypatch.setattr(sys, "argv", ["train.py", *arguments])
        code = run_hydra(main)
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
