"""Nobody need listen to a run: a log's disk that is full, a reader that has gone, end none."""

import os
import resource
import subprocess
import sys

import pytest

from tests.faults.harness import verified_steps, equal, train, overridden
from tests.parts import ROOT

LOST = "warning: nothing more can be printed"


def full():
    return os.open("/dev/full", os.O_WRONLY)


def unread():
    """A pipe whose other end is closed, as `head` leaves it."""
    reads, writes = os.pipe()
    os.close(reads)
    return writes


@pytest.mark.parametrize("place", [full, unread])
@pytest.mark.parametrize("numbers", [(1,), (2,), (1, 2)], ids=["stdout", "stderr", "both"])
def test_a_run_goes_on_unheard(tmp_path, place, numbers):
    def act():
        for number in numbers:
            os.dup2(place(), number)
        sys.stdout, sys.stderr = (os.fdopen(n, "w", buffering=1, closefd=False) for n in (1, 2))

    code, output = train(tmp_path, overridden(), act)
    assert code == 0, output
    assert output.count(LOST) == (numbers == (1,)) and "Traceback" not in output
    equal(tmp_path / "runs/run")


def test_what_is_shown_ends_quietly():
    """The config is not a run: when `head` has seen enough of it, it ends."""
    done = subprocess.run(
        f"{sys.executable} {ROOT}/train.py --cfg job | head -2", shell=True, capture_output=True, text=True
    )
    assert done.stdout.count("\n") == 2 and not done.stderr


def test_files_that_may_not_grow(tmp_path):
    """A limit on the size of files fails every checkpoint; the file is named, what was there is untouched."""

    def limited():
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))

    assert train(tmp_path, overridden("train.steps=2"))[0] == 0
    code, output = train(tmp_path, overridden("train.steps=9", "resume=true"), limited)
    assert code == 6 and "Traceback" not in output and "Errno" not in output, output
    assert "step-00000003.draft/model.safetensors: file too large" in output
    assert verified_steps(tmp_path / "runs/run") == [1, 2]


def test_what_saving_cost_is_told(tmp_path):
    code, output = train(tmp_path, overridden())
    assert code == 0
    [error] = [line for line in output.splitlines() if line.startswith("4 checkpoints: ")]
    share = float(error.split(", ")[-1].partition("%")[0])
    assert 0 <= share < 100 and error.endswith("% of the time"), error
