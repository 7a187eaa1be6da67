"""However a run of two processes ends, both of them end, each with its exit code and a sentence;
and the run resumes to the bytes of one that was never interrupted."""

import os
import random
import re
import signal
import subprocess
from functools import cache, partial
from importlib import import_module
from pathlib import Path

import pytest
from torch.distributed import TCPStore

import train
from tests.faults.harness import HOME, OVERRIDES, RUN, STEPS, assert_equal, end, start, valid_steps
from tests.faults.shim import Shim, full, kill, send, spoil
from tests.training.runs import TORCHRUN

OWN = """# a norm with a buffer that each forward pass in training changes
import torch
from model.norm import NORMS, RMSNorm


class Running(RMSNorm):
    def __init__(self, width: int, eps: float = 1e-5, weight: bool = True, bias: bool = False):
        super().__init__(width, eps, weight, bias)
        self.register_buffer("seen", torch.zeros(1))

    def forward(self, values):
        if self.training:
            self.seen.lerp_(values.detach().float().square().mean(), 0.1)
        return super().forward(values) / (1 + self.seen).to(values.dtype)


NORMS["running"] = Running
"""
LIMIT = 240  # seconds, then a process that hangs is killed
LOST = "another process of this run has ended or does not respond"
WAYS = {  # to end: the exit codes of the process to which it happens, and of the other one
    "SIGTERM": (75, 75),
    "SIGTERM to both": (75, 75),
    "SIGKILL": (-signal.SIGKILL, 7),
    "SIGSTOP": (-signal.SIGKILL, 7),
    "SIGSTOP while it reads data": (-signal.SIGKILL, 7),
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
        signal.alarm(LIMIT)
        os.environ |= {
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": "2",
            "MASTER_ADDR": "localhost",
            "MASTER_PORT": str(store.port),
            "TORCHELASTIC_USE_AGENT_STORE": "True",
            "TORCHELASTIC_RESTART_COUNT": "0",
        }
        act(rank)

    (HOME / "own.py").write_text(OWN)
    own = [f"parts={HOME}/own.py", "model.norm.kind=running"]
    usual = [*OVERRIDES, "precision=fp32", "train.micro_batch_size=1", *own]
    pids = [start(cwd, [*usual, *overrides], partial(prepare, n), f"output-{n}") for n in range(2)]
    return pids, store


def finish(cwd, *overrides):
    """Two processes come to the end of a run."""
    pids, _store = start_two(cwd, *overrides)
    assert [end(pid) for pid in pids] == [0, 0]


@cache
def whole_run(parallel):
    """The folder of a run of two processes that was never interrupted."""
    for module in ("torch._dynamo", "torch.distributed.fsdp", "torch.distributed.tensor"):
        import_module(module)  # of FSDP: seconds that are spent once, before the forks
    cwd = HOME / parallel
    cwd.mkdir()
    finish(cwd, f"parallel={parallel}")
    return cwd / RUN


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
    elif way == "SIGSTOP while it reads data":
        send(train, "load_data", 1, signal.SIGSTOP)
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
    overrides = [f"parallel={parallel}", f"ddp_timeout={10 if 'SIGSTOP' in way else 60}"]
    act = partial(happens, way, victim, draw)
    pids, _store = start_two(tmp_path, *overrides, act=act)

    other_code = end(pids[1 - victim])
    if "SIGSTOP" in way:  # torchrun kills it once the other one has ended
        os.kill(pids[victim], signal.SIGKILL)
    codes = (end(pids[victim]), other_code)
    outputs = [(tmp_path / f"output-{rank}").read_text() for rank in range(2)]
    assert codes == WAYS[way], outputs
    assert ("Traceback" in "".join(outputs)) == (way == "bug"), outputs
    assert (LOST in outputs[1 - victim]) == (other_code == 7), outputs
    if way == "full disk once":
        return
    valid_steps(tmp_path / RUN)
    finish(tmp_path, *overrides, "resume=auto")
    assert_equal(tmp_path / RUN, expected)


LONG = ["train.steps=200", "checkpoint.every=50", "eval.every=null", "sample.every=null"]
SENT = [  # the signal, its receiver, and how the processes share the model
    ("SIGTERM", "both", "ddp"),
    ("SIGUSR2", "one", "fsdp"),
    ("SIGINT", "torchrun", "ddp"),
]


def start_torchrun(cwd, parallel):
    command = [*TORCHRUN, *OVERRIDES, "data.cache=cache", *LONG, f"parallel={parallel}"]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, cwd=cwd, stdout=pipe, stderr=pipe, text=True)


@pytest.mark.faults
@pytest.mark.parametrize("name, receiver, parallel", SENT)
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
    valid_steps(tmp_path / RUN)
