"""A full log disk or a closed output pipe does not stop a run."""

import os
import re
import resource
import subprocess
import sys

import pytest

from tests.faults.harness import equal, overridden, train, verified_steps
from tests.parts import ROOT


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
    assert output.count("warning: cannot print any more") == (numbers == (1,)) and "Traceback" not in output
    if 1 not in numbers:
        assert re.search(r"\n4 checkpoints; training blocked for \d+\.\d\d s \(\d\d?\.\d%\)\n", output)
    equal(tmp_path / "runs/run")


def test_a_listing_ends_with_its_reader():
    command = f"{sys.executable} {ROOT}/train.py --cfg job | head -2"
    done = subprocess.run(command, shell=True, capture_output=True, text=True)
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
