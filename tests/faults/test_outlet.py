"""Nobody need listen to a run: a log's disk that is full, a reader that has gone, end none."""

import os
import resource
import subprocess
import sys

import pytest

from tests.faults.harness import complete, equal, ran, words
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

    code, said = ran(tmp_path, words(), act)
    assert code == 0, said
    assert said.count(LOST) == (numbers == (1,)) and "Traceback" not in said
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

    assert ran(tmp_path, words("train.steps=2"))[0] == 0
    code, said = ran(tmp_path, words("train.steps=9", "resume=true"), limited)
    assert code == 6 and "Traceback" not in said and "Errno" not in said, said
    assert "step-00000003.draft/model.safetensors: file too large" in said
    assert complete(tmp_path / "runs/run") == [1, 2]


def test_what_saving_cost_is_told(tmp_path):
    code, said = ran(tmp_path, words())
    assert code == 0
    [told] = [line for line in said.splitlines() if line.startswith("4 checkpoints: ")]
    share = float(told.split(", ")[-1].partition("%")[0])
    assert 0 <= share < 100 and told.endswith("% of the time"), told
