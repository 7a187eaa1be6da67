"""A command imports what is slow to import only when it needs it, and a run notices that it is not alone."""

import hashlib
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest

import training.monitor
from tests.parts import ROOT
from tests.training.runs import TEXT, USUAL

LIBRARIES = "datasets huggingface_hub matplotlib pandas requests tokenizers transformers wandb"
SLOW = {"torch._dynamo", "torch.distributed.tensor", *LIBRARIES.split()}
ENVIRONMENT = os.environ | {"PYTHONPATH": str(ROOT)}
# prints what is imported at the end, or once a function has returned for the first time
CHILD = """
import atexit, importlib, runpy, sys
command, first, *arguments = sys.argv[1:]
report = lambda: print("imported", *sys.modules, file=sys.__stderr__)
if first:
    module, owner, name = first.split(":")
    owner = getattr(importlib.import_module(module), owner)
    function = getattr(owner, name)
    def once(*args):
        setattr(owner, name, function)
        result = function(*args)
        report()
        return result
    setattr(owner, name, once)
else:
    atexit.register(report)
sys.argv = [command, *arguments]
run = runpy.run_path if command.endswith(".py") else runpy.run_module
run(command, run_name="__main__")
"""


def imported(home, command, *arguments, first=""):
    command = str(ROOT / command) if command.endswith(".py") else command
    argv = [sys.executable, "-c", CHILD, command, first, *arguments]
    done = subprocess.run(argv, cwd=home, env=ENVIRONMENT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    [line] = [line for line in done.stderr.splitlines() if line.startswith("imported ")]
    return set(line.split())


@pytest.mark.parametrize("command", ["train.py", "data", "training.compare"])
def test_help_needs_no_torch(tmp_path, command):
    assert not imported(tmp_path, command, "--help") & {"torch", *SLOW}


@pytest.mark.parametrize("command", ["sample.py", "model.hub"])
def test_help(tmp_path, command):
    assert not imported(tmp_path, command, "--help") & SLOW


def test_first_step_and_first_token(tmp_path):
    """With an evaluation before the first step, and trial steps."""
    (tmp_path / "book.txt").write_text(TEXT)
    run = imported(tmp_path, "train.py", *USUAL, "name=a", first="training.run:Run:advance")
    assert not run & SLOW and "torch" in run
    assert (
        tmp_path / "runs/a/curve.png"
    ).exists()  # though at the first evaluation it was not drawn
    sample = ["--prompt", "line", "--max-new-tokens", "2"]
    sampler = imported(
        tmp_path, "sample.py", *sample, first="model.generate.stream:TextStream:push"
    )
    assert not sampler & {"sympy", *SLOW}


@pytest.mark.parametrize(
    ("threads", "waited", "fewer"),
    [(2, 0.5, 1), (2, 1.6, 1), (64, 0.5, 63), (8, 1.5, 5), (2, 0.1, None), (1, 0.5, None)],
)
def test_busy_cores_are_named_once(monkeypatch, threads, waited, fewer):
    lines, precision = [], SimpleNamespace(n_threads=threads)
    console, run = SimpleNamespace(print=lines.append), SimpleNamespace(precision=precision)
    monitor = SimpleNamespace(run=run, console=console, waiting=7.0, warned=False)
    monkeypatch.setattr(training.monitor, "seconds_waiting", lambda: 7 + 4 * waited)
    for _ in range(2):
        training.monitor.Monitor.warn_of_busy_cores(monitor, 4.0)
    assert [line.partition("OMP_NUM_THREADS=")[2].split()[0] for line in lines] == [
        str(fewer)
    ] * bool(fewer)


@pytest.mark.skipif(not os.path.exists("/proc/self/schedstat"), reason="only Linux tells it")
def test_threads_that_share_a_core_wait():
    """This ends only if the waiting is seen."""
    cores, data = os.sched_getaffinity(0), bytes(1 << 22)
    os.sched_setaffinity(0, {min(cores)})  # and threads that start now
    before = training.monitor.seconds_waiting()
    try:
        with ThreadPoolExecutor(2) as pool:
            while training.monitor.seconds_waiting() < before + 0.05:
                list(pool.map(lambda data: hashlib.sha256(data), [data] * 4))
    finally:
        os.sched_setaffinity(0, cores)
