"""Every command ends with 0, or with one sentence and an exit code."""

import errno
import os
import re
import subprocess
import sys

import pytest
from hydra.errors import HydraException

from configs.cli import print0, run_command
from configs.errors import CheckpointError, DataError, RunLockedError, StopRequested
from tests.parts import ROOT


class OutOfMemoryError(RuntimeError):
    """As that of torch."""


@pytest.mark.quick
@pytest.mark.parametrize(
    "error, code, sentence",
    [
        (ValueError("seed is x"), 2, "seed is x"),
        (DataError("no text"), 3, "no text"),
        (CheckpointError("damaged"), 4, "damaged"),
        (FloatingPointError("the loss is nan"), 5, "the loss is nan"),
        (MemoryError(), 6, "out of memory"),
        (OSError(errno.ENOSPC, "No space left", "runs/a"), 6, "runs/a: no space left"),
        (OutOfMemoryError("CUDA is full\nand more"), 6, "out of memory .CUDA is full.; lower trai"),
        (RuntimeError("[gloo] Connection closed by peer"), 7, "another process of this run has en"),
        (RuntimeError("can't start new thread"), 6, "the system allows no more threads"),
        (RunLockedError("in use"), 8, "in use"),
        # ends that are no errors print nothing
        (KeyboardInterrupt(), 130, None),
        (StopRequested(), 75, None),
        (SystemExit(), 0, None),
    ],
)
def test_an_error_is_one_line_and_an_exit_code(capsys, error, code, sentence):
    def fail():
        raise error

    assert run_command(fail) == code
    stderr = capsys.readouterr().err
    expected = f"error: {sentence}.*\n" if sentence else ""
    assert re.fullmatch(expected, stderr), stderr


@pytest.mark.quick
def test_a_closed_output(monkeypatch):
    """As some schedulers start programs."""
    monkeypatch.setattr("sys.stdout", None)
    assert run_command(lambda: print0("lost")) == 0


@pytest.mark.quick
def test_an_interrupt_while_settings_are_composed(capsys):
    """Which Hydra would make another error of."""

    def interrupted():
        try:
            raise KeyboardInterrupt
        finally:
            raise HydraException

    assert run_command(interrupted) == 130 and not capsys.readouterr().err


@pytest.mark.quick
def test_a_bug_shows_its_traceback(capsys):
    assert run_command(lambda: {}["x"]) == 1
    assert "Traceback" in capsys.readouterr().err


def test_a_reader_that_closes_the_pipe():
    """The command ends without a word, but not as if it had finished."""
    command = [sys.executable, str(ROOT / "train.py"), "--cfg", "job"]
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(command, cwd=ROOT, stdout=write, stderr=subprocess.PIPE)
    assert done.returncode == 141 and not done.stderr
