"""However a run of two processes ends, both of them end, each with its exit code and a sentence;
and the run resumes to the bytes of one that was never interrupted."""

import os
import random
import re
import select
import signal
import subprocess
import sys
from functools import cache, partial
from importlib import import_module
from pathlib import Path

import pytest
import torch
from torch.distributed import TCPStore

import train
from model.transformer import Decoder
from tests.faults.harness import (
    RUN,
    STEPS,
    assert_equal,
    end,
    home,
    overridden,
    start,
    verified_steps,
)
from tests.faults.shim import Shim, full, kill
from tests.faults.test_signals import send
from tests.parts import ROOT

LIMIT = 240  # seconds in which both processes end
LOST = "another process of this run has ended or does not respond"
WAYS = {  # to end: the exit codes of the process to which it happens, and of the other one
    "SIGTERM": (75, 75),
    "SIGINT": (75, 75),
    "SIGUSR2": (75, 75),
    "SIGTERM to both": (75, 75),
    "SIGKILL": (-signal.SIGKILL, 7),
    "SIGSTOP": (-signal.SIGKILL, 7),
    "nan": (5, 5),
    "bug": (1, 7),
    "SIGKILL while it saves": (-signal.SIGKILL, 7),
    "full disk": (6, 7),
    "full disk once": (0, 0),
}


def start_two(cwd, *overrides, act=lambda rank: None):
    """The ids of two processes that share a run, each after act(its rank); and where they meet."""
    store = TCPStore("localhost", 0, is_master=True, wait_for_workers=False)

    def prepare(rank):
        environment = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": 2}
        environment |= {"MASTER_ADDR": "localhost", "MASTER_PORT": store.port}
        environment |= {"TORCHELASTIC_USE_AGENT_STORE": True, "TORCHELASTIC_RESTART_COUNT": 0}
        os.environ.update({name: str(value) for name, value in environment.items()})
        act(rank)

    arguments = overridden("precision=fp32", "train.micro_batch_size=1", *overrides)
    pids = [start(cwd, arguments, partial(prepare, n), f"output-{n}") for n in range(2)]
    return pids, store


def end_in_time(pid):
    """The exit code of a process that must not hang."""
    handle = os.pidfd_open(pid)
    has_ended = select.select([handle], [], [], LIMIT)[0]
    os.close(handle)
    if not has_ended:
        os.kill(pid, signal.SIGKILL)
    code = end(pid)
    assert has_ended, "the process hangs"
    return code


@cache
def whole_run(parallel):
    """The folder of a run of two processes that was never interrupted."""
    for module in ("torch._dynamo", "torch.distributed.fsdp", "torch.distributed.tensor"):
        import_module(module)  # of FSDP: seconds that are spent once, before the forks
    cwd = home() / parallel
    cwd.mkdir()
    pids, _store = start_two(cwd, f"parallel={parallel}")
    assert [end_in_time(pid) for pid in pids] == [0, 0]
    return cwd / RUN


def spoil(kind, call):
    """The n-th forward pass in training returns NaN, or raises an error."""
    real = Decoder.hidden
    count = 0

    def hidden(model, *arguments, **options):
        nonlocal count
        count += model.training
        if kind == "bug" and count == call:
            raise RuntimeError("a bug")
        x = real(model, *arguments, **options)
        return x * torch.nan if model.training and count == call else x

    Decoder.hidden = hidden


def happens(way, victim, draw, rank):
    """Prepare this process for what will happen to the victim, at a random moment."""
    step = draw.randint(1, STEPS)
    forward_pass = draw.randint(1, 2 * STEPS)
    operation = draw.randint(1, 40)  # before the last checkpoint
    if rank != victim and not way.endswith("both"):
        return
    if way == "SIGKILL while it saves":
        Shim(kill, operation, below="/checkpoints")()
    elif way.startswith("full disk"):
        Shim(full, operation, below="/checkpoints", always=not way.endswith("once"))()
    elif way.startswith("SIG"):
        send(train, "update", step, signal.Signals[way.split()[0]])
    else:
        spoil(way, forward_pass)


@pytest.mark.faults
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
@pytest.mark.parametrize("way", WAYS)
def test_two_processes_end(way, parallel, seed, tmp_path):
    expected = whole_run(parallel)
    draw = random.Random(seed)
    only_main_has_it = "disk" in way or "saves" in way
    victim = 0 if only_main_has_it else draw.randrange(2)
    overrides = [f"parallel={parallel}", f"ddp_timeout={10 if way == 'SIGSTOP' else 60}"]
    act = partial(happens, way, victim, draw)
    pids, _store = start_two(tmp_path, *overrides, act=act)

    other_code = end_in_time(pids[1 - victim])
    if way == "SIGSTOP":  # torchrun kills it once the other one has ended
        os.kill(pids[victim], signal.SIGKILL)
    codes = (end_in_time(pids[victim]), other_code)
    outputs = [(tmp_path / f"output-{rank}").read_text() for rank in range(2)]
    assert codes == WAYS[way], outputs
    assert ("Traceback" in "".join(outputs)) == (way == "bug"), outputs
    assert (LOST in outputs[1 - victim]) == (other_code == 7), outputs
    if way == "full disk once":
        return
    verified_steps(tmp_path / RUN)
    pids, _store = start_two(tmp_path, *overrides, "resume=auto")
    assert [end_in_time(pid) for pid in pids] == [0, 0]
    assert_equal(tmp_path / RUN, expected)


# ---- torchrun

TWO = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
LONG = ["train.steps=200", "checkpoint.every=50", "eval.every=null", "sample.every=null"]
SENT = [  # the signal, its receiver, and how the processes share the model
    ("SIGTERM", "both", "ddp"),
    ("SIGUSR2", "one", "fsdp"),
    ("SIGINT", "torchrun", "ddp"),
]


def start_torchrun(cwd, parallel):
    usual = overridden("data.cache=cache", *LONG, f"parallel={parallel}")
    command = [*TWO, str(ROOT / "train.py"), *usual]
    pipe = subprocess.PIPE
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, cwd=cwd, stdout=pipe, stderr=pipe, text=True, env=environment)


@pytest.mark.faults
@pytest.mark.parametrize(("name", "receiver", "parallel"), SENT)
def test_a_signal_to_torchrun(name, receiver, parallel, tmp_path):
    process = start_torchrun(tmp_path, parallel)
    for line in process.stdout:
        if line.startswith("step      3 "):
            break
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    receivers = {"both": children, "one": children[1:], "torchrun": [process.pid]}
    for pid in receivers[receiver]:
        os.kill(int(pid), signal.Signals[name])
    output, errors = process.communicate(timeout=LIMIT)
    assert process.returncode == 1, errors
    assert "stopped; to resume: python train.py name=run resume=true" in output
    ours = errors.partition("torch/distributed/elastic")[0]
    assert "Traceback" not in ours
    if receiver != "torchrun":
        assert re.search(r"exitcode *: 75", errors), errors
    verified_steps(tmp_path / RUN)
