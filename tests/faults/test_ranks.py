"""Processes that share a run end together: what is wrong is output once, and no other one falls over it."""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from model.checkpoint.files import verify
from tests.parts import ROOT
from tests.training.runs import TEXT, USUAL

TWO = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
LONG = [
    "train.steps=100000",
    "checkpoint.every=5",
    "eval.every=null",
    "sample.every=null",
    "name=two",
]


@pytest.fixture
def two(tmp_path):
    """Two processes in the middle of a run, and its folder."""
    (tmp_path / "book.txt").write_text(TEXT)
    usual = [override for override in USUAL if not override.startswith("train.steps")]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        [*TWO, str(ROOT / "train.py"), *usual, *LONG], cwd=tmp_path, stderr=subprocess.PIPE, text=True,
        stdout=subprocess.DEVNULL, env=environment,
    )  # fmt: skip
    until = time.monotonic() + 60
    while not (tmp_path / "runs/two/checkpoints/latest").exists() and time.monotonic() < until:
        os.sched_yield()
    yield process, tmp_path / "runs/two"
    process.kill()


def without_torchrun(output):
    """What the processes printed, without what torchrun prints about them."""
    return output.partition("torch/distributed/elastic")[0]


@pytest.mark.faults
def test_a_folder_that_disappears(two, tmp_path):
    process, folder = two
    shutil.move(folder, tmp_path / "gone")
    output = without_torchrun(process.communicate(timeout=60)[1])
    assert process.returncode and output.count("3 checkpoints in a row could not be saved") == 1, (
        output
    )
    assert "Traceback" not in output and "another process of this run has ended" in output, output


def children(process):
    return list(
        map(int, Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split())
    )


SENT = [("SIGTERM", "all"), ("SIGUSR2", "one"), ("SIGINT", "torchrun")]


@pytest.mark.faults
@pytest.mark.parametrize(("name", "to"), SENT)
def test_a_signal_stops_all_processes(two, name, to):
    """The main process reports it once it has saved; the other prints nothing. torchrun ends with 1."""
    process, folder = two
    first, second = children(process)
    for pid in {"all": [first, second], "one": [second], "torchrun": [process.pid]}[to]:
        os.kill(pid, signal.Signals[name])
    output = process.communicate(timeout=60)[1]
    [step] = re.findall(rf"stopped by {name} after step (\d+) \(saved\)", output)
    verify(folder / f"checkpoints/step-{int(step):08}")
    assert process.returncode == 1 and "Traceback" not in without_torchrun(output), output
    assert to == "torchrun" or "exitcode  : 75" in output, output
