"""However a run of two processes ends, both of them end soon, each with an exit code and a sentence."""

import os
import random
import re
import select
import signal
import threading
import time

import pytest
import torch

from model.transformer import Decoder
from tests.faults.harness import child, exit_code, overridden, run_trials, verified_steps
from tests.faults.shim import Shim, full
from tests.training.runs import torchrun_environment

LIMIT = 15  # seconds from the last forward pass of any process to the end of both
TIMEOUT = 4  # seconds
CALLS = range(6, 20)  # the forward passes of the training steps
CODES = {  # of the process to which it happens, and of the other one
    "end": (0, 0),
    "SIGTERM": (75, 75),
    "SIGINT": (75, 75),
    "SIGUSR2": (75, 75),
    "SIGTERM to both": (75, 75),
    "SIGTERM, SIGTERM": (75, 75),
    "nan": (5, 5),
    "error": (1, 7),
    "full disk": (6, 7),
    "slow disk": (0, 0),
    "SIGKILL": (-signal.SIGKILL, 7),
    "SIGSTOP": (-signal.SIGKILL, 7),
}


def watch_forward(alive, number, happen):
    """Touch the file `alive` in each forward pass; the n-th one returns happen(its output)."""
    real, count = Decoder.hidden, 0

    def hidden(*args, **rest):
        nonlocal count
        count += 1
        alive.touch()
        output = real(*args, **rest)
        return happen(output) if count == number else output

    Decoder.hidden = hidden


def happens(kind, output):
    for name in re.findall(r"SIG\w+", kind):
        os.kill(os.getpid(), signal.Signals[name])
    if kind == "error":
        raise RuntimeError("a bug")
    return output * float("nan") if kind == "nan" else output


def ends(item, cwd):
    kind, victim, number = item
    store = torch.distributed.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)

    def act(rank):
        os.environ.update(torchrun_environment(rank, store.port))
        hit = rank == victim or kind.endswith("both")
        watch_forward(cwd / "alive", number if hit else None, lambda output: happens(kind, output))
        if hit and kind == "full disk":
            Shim(number, full, below="runs/run/checkpoints", always=True)()
        if hit and kind == "slow disk":  # it takes longer than the timeout
            Shim(number, lambda *_: threading.Event().wait(1.5 * TIMEOUT), below="runs/run/checkpoints")()

    changes = ["precision=fp32", "train.micro_batch_size=1", "train.steps=8", f"ddp_timeout={TIMEOUT}"]
    changes += ["eval.every=null", "sample.every=null"]
    pids = [child(cwd, overridden(*changes), lambda r=r: act(r), f"output-{r}.txt") for r in (0, 1)]
    codes, other = {}, 1 - victim
    for rank in (other, victim):
        if kind == "SIGSTOP" and rank == victim:  # torchrun kills it once the other one has ended
            os.kill(pids[rank], signal.SIGKILL)
        handle = os.pidfd_open(pids[rank])
        if not select.select([handle], [], [], 60)[0]:
            os.kill(pids[rank], signal.SIGKILL)
        codes[rank] = exit_code(pids[rank])
        os.close(handle)
    seconds = time.time() - (cwd / "alive").stat().st_mtime
    outputs = [(cwd / f"output-{rank}.txt").read_text() for rank in (0, 1)]
    with open(cwd.parent / "seconds.txt", "a") as file:
        file.write(f"{seconds:.2f} {kind}\n")
    assert (codes[victim], codes[other]) == CODES[kind] and seconds < LIMIT, (codes, seconds, *outputs)
    assert ("Traceback" in "".join(outputs)) == (kind == "error"), outputs
    if codes[other] == 7:
        said = "ddp_timeout" if kind == "SIGSTOP" else "another process of this run has ended"
        assert said in outputs[other], outputs
        assert ("most recent call first" in outputs[other]) == (kind == "SIGSTOP"), outputs
    if codes[other] == 75:
        [step] = re.findall(r"stopped by SIG\w+ after step (\d+) \(saved\)", "".join(outputs))
        assert int(step) in verified_steps(cwd / "runs/run"), outputs


def endings(n, seed, kinds):
    """n of them, in turn; only the main process has a disk."""
    draw = random.Random(seed)
    for number in range(n):
        kind = kinds[number % len(kinds)]
        yield kind, 0 if "disk" in kind else draw.randrange(2), draw.choice(CALLS)


def test_two_processes_end(tmp_path):
    run_trials(ends, endings(4, 1, ["SIGSTOP", "slow disk", "SIGTERM, SIGTERM", "error"]), tmp_path)


@pytest.mark.faults
def test_two_processes_end_200_times(tmp_path):
    run_trials(ends, endings(200, 2, list(CODES)), tmp_path)
