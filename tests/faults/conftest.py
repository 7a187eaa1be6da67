"""The fault tests start runs as those of training do, or resume a copy of a finished one."""

import signal

import pytest

from configs.compose import compose
from tests.faults.harness import copy_run
from tests.training.conftest import room, start
from train import main
from training.sweep import launch

__all__ = ["folder", "resume", "room", "start"]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The folder of a finished run, below the current one."""
    monkeypatch.chdir(tmp_path)
    return copy_run(tmp_path)


@pytest.fixture
def resume(folder, capsys):
    """resume(*overrides) -> (exit code, output) of that run, in this process; it fails if it is blocked."""

    def resume(*overrides):
        signal.alarm(60)
        code = launch(main, compose, ["name=run", "resume=true", *overrides])
        signal.alarm(0)
        return code, "".join(capsys.readouterr())

    before = signal.signal(signal.SIGALRM, lambda *_: pytest.fail("the run is blocked"))
    yield resume
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)
