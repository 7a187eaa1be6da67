"""A full log disk or a closed output pipe does not stop a run."""

import os
import re
import resource
import subprocess
import sys

import pytest

from tests.faults.harness import equal, overridden, train, verified_steps
from tests.parts import ROOT

LOST = "warning: cannot print any more"


def full():
    return os.open("/dev/full", os.O_WRONLY)


def unread():
    """A pipe whose reader has left, as `head` does."""
    reads, writes = os.pipe()
    os.close(reads)
    return writes


@pytest.mark.parametrize("place", [full, unread])
@pytest.mark.parametrize("numbers", [(1,), (2,), (1, 2)], ids=["stdout", "stderr", "both"])
def test_a_run_continues_without_output(tmp_path, place, numbers):
    def act():
        for number in numbers:
            os.dup2(place(), number)
        sys.stdout, sys.stderr = (os.fdopen(n, "w", buffering=1, closefd=False) for n in (1, 2))

    code, output = train(tmp_path, overridden(), act)
    assert code == 0, output
    assert output.count(LOST) == (numbers == (1,)) and "Traceback" not in output
    equal(tmp_path / "runs/run")


def test_a_listing_ends_with_its_reader():
    done = subprocess.run(
        f"{sys.executable} {ROOT}/train.py --cfg job | head -2", shell=True, capture_output=True, text=True
    )
    assert done.stdout.count("\n") == 2 and not done.stderr


def test_a_limit_on_file_size(tmp_path):
    """Every checkpoint fails; the file is named, and earlier checkpoints are untouched."""

    def limited():
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))

    assert train(tmp_path, overridden("train.steps=2"))[0] == 0
    code, output = train(tmp_path, overridden("train.steps=9", "resume=true"), limited)
    assert code == 6 and "Traceback" not in output and "Errno" not in output, output
    assert "step-00000003.draft/model.safetensors: file too large" in output
    assert verified_steps(tmp_path / "runs/run") == [1, 2]


def test_the_cost_of_checkpoints_is_printed(tmp_path):
    code, output = train(tmp_path, overridden())
    assert code == 0
    [line] = [line for line in output.splitlines() if line.startswith("4 checkpoints; ")]
    assert re.fullmatch(r"4 checkpoints; training blocked for \d+\.\d\d s \(\d\d?\.\d%\)", line)
