"""However a run of two processes ends, both of them end soon, each with an exit code and a sentence."""

import os
import random
import re
import select
import signal
import threading
import time
from functools import cache

import pytest
import torch

import training.optimizer
from model.transformer import Decoder
from tests.faults.harness import (
    child,
    equal,
    exit_code,
    home,
    overridden,
    run_trials,
    verified_steps,
)
from tests.faults.shim import Shim, full, kill
from tests.training.runs import torchrun_environment

LIMIT = 15  # seconds from the last forward pass of any process to the end of both
TIMEOUT = 4  # seconds
CALLS = range(6, 20)  # the forward passes of the training steps
OPERATIONS = range(6, 120)  # of the disk
DISK = ("full disk", "disk full once", "slow disk", "SIGKILL while it writes")
CODES = {  # of the process to which it happens (of a disk, of the main one), and of the other one
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
    "disk full once": (0, 0),
    "SIGKILL": (-signal.SIGKILL, 7),
    "SIGKILL while it writes": (-signal.SIGKILL, 7),
    "SIGKILL while it updates": (-signal.SIGKILL, 7),
    "SIGKILL to both": (-signal.SIGKILL, -signal.SIGKILL),
    "SIGSTOP": (-signal.SIGKILL, 7),
    "SIGSTOP to both": (-signal.SIGKILL, -signal.SIGKILL),
}
CHANGES = ["precision=fp32", "train.micro_batch_size=1", "train.steps=8", f"ddp_timeout={TIMEOUT}"]
CHANGES += ["eval.every=null", "sample.every=null"]


def watch(owner, name, alive, number, happen):
    """Touch the file `alive` in each call of a function; the n-th one returns happen(its output)."""
    real, count = getattr(owner, name), 0

    def watched(*args, **rest):
        nonlocal count
        count += 1
        alive.touch()
        output = real(*args, **rest)
        return happen(output) if count == number else output

    setattr(owner, name, watched)


def happens(kind, output):
    for name in re.findall(r"SIG\w+", kind):
        os.kill(os.getpid(), signal.Signals[name])
    if kind == "error":
        raise RuntimeError("a bug")
    return output * float("nan") if kind == "nan" else output


def start_two(cwd, overrides, act=lambda rank: None):
    """The ids of two processes that share a run, each after act(its rank), and the store that they need."""
    store = torch.distributed.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)

    def prepare(rank):
        os.environ.update(torchrun_environment(rank, store.port))
        act(rank)

    return [child(cwd, overrides, lambda r=r: prepare(r), f"output-{r}.txt") for r in (0, 1)], store


@cache
def whole_run(parallel):
    """The folder of a run of two processes that was never interrupted."""
    cwd = home()[0] / parallel
    cwd.mkdir()
    pids, _store = start_two(cwd, overridden(*CHANGES, f"parallel={parallel}"))
    assert [*map(exit_code, pids)] == [0, 0]
    return cwd / "runs/run"


def ends(item, cwd):
    """The run ends as it should, and then goes on to where it would have come without interruption."""
    parallel, kind, victim, number = item
    overrides = overridden(*CHANGES, f"parallel={parallel}")

    def act(rank):
        hit = rank == victim or kind.endswith("both")
        n = number if hit and kind not in DISK else None
        where = (training.optimizer, "newton_schulz") if "updates" in kind else (Decoder, "hidden")
        watch(*where, cwd / "alive", n, lambda output: happens(kind, output))
        acts = {"full disk": full, "disk full once": full_once, "SIGKILL while it writes": kill}
        acts["slow disk"] = lambda *_: threading.Event().wait(
            1.5 * TIMEOUT
        )  # longer than the timeout
        if hit and kind in acts:
            Shim(number, acts[kind], below="runs/run/checkpoints", always=kind == "full disk")()

    def full_once(name, *call):
        (cwd / "failed").write_text(name)
        full(name, *call)

    pids, _store = start_two(cwd, overrides, act)
    codes, other = {}, 1 - victim
    for rank in (other, victim):
        if kind == "SIGSTOP to both":
            os.waitid(os.P_PID, pids[rank], os.WSTOPPED | os.WEXITED | os.WNOWAIT)
        # torchrun kills a stopped process once the other one has ended; two of them, whoever started it
        if kind == "SIGSTOP to both" or (kind == "SIGSTOP" and rank == victim):
            os.kill(pids[rank], signal.SIGKILL)
        handle = os.pidfd_open(pids[rank])
        if not select.select([handle], [], [], 300)[0]:
            os.kill(pids[rank], signal.SIGKILL)
        codes[rank] = exit_code(pids[rank])
        if kind == "SIGKILL to both" and codes[rank] == 7:  # it saw the other one end first
            codes[rank] = -signal.SIGKILL
        os.close(handle)
    seconds = time.time() - (cwd / "alive").stat().st_mtime
    outputs = [(cwd / f"output-{rank}.txt").read_text() for rank in (0, 1)]
    with open(cwd.parent / "seconds.txt", "a") as file:
        file.write(f"{seconds:.2f} {kind}\n")
    first = 0 if "disk" in kind else victim
    assert (codes[first], codes[1 - first]) == CODES[kind] and seconds < LIMIT, (
        codes,
        seconds,
        *outputs,
    )
    assert ("Traceback" in "".join(outputs)) == (kind == "error"), outputs
    failed = kind == "disk full once" and (cwd / "failed").read_text()
    if failed and failed != "mkdir" and victim == 1:  # a folder of a checkpoint may exist already
        assert re.search(r"warning: a checkpoint .* \(.*no space left on device\)", outputs[0]), (
            outputs
        )
    if codes[other] == 7:
        said = "ddp_timeout" if kind == "SIGSTOP" else "another process of this run has ended"
        assert said in outputs[other], outputs
        assert ("most recent call first" in outputs[other]) == (kind == "SIGSTOP"), outputs
    if codes[other] == 75:
        [step] = re.findall(r"stopped by SIG\w+ after step (\d+) \(saved\)", "".join(outputs))
        assert int(step) in verified_steps(cwd / "runs/run"), outputs
    pids, _store = start_two(cwd, [*overrides, "resume=auto"])
    assert [*map(exit_code, pids)] == [0, 0], [
        (cwd / f"output-{rank}.txt").read_text() for rank in (0, 1)
    ]
    equal(cwd / "runs/run", whole_run(parallel))


def endings(n, seed, kinds, parallel):
    """n of them, in turn; with DDP only the main process has a disk."""
    draw = random.Random(seed)
    whole_run(parallel)
    for number in range(n):
        kind = kinds[number % len(kinds)]
        victim, moments = draw.randrange(2), OPERATIONS if kind in DISK else CALLS
        yield (
            parallel,
            kind,
            victim * (moments is CALLS or parallel == "fsdp"),
            draw.choice(moments),
        )


def test_two_processes_end(tmp_path):
    run_trials(ends, endings(3, 1, ["SIGSTOP", "SIGTERM, SIGTERM", "error"], "ddp"), tmp_path)


def test_two_processes_of_a_sharded_run_end(tmp_path):
    whole_run("fsdp")
    run_trials(ends, [("fsdp", kind, 1, 30) for kind in ("slow disk", "disk full once")], tmp_path)


@pytest.mark.faults
def test_a_sharded_run_needs_a_folder_that_all_processes_see(tmp_path):
    def move(rank):
        (tmp_path / str(rank)).mkdir()
        os.chdir(tmp_path / str(rank))

    pids, _store = start_two(tmp_path, overridden("parallel=fsdp"), move)
    assert [*map(exit_code, pids)] == [7, 2]
    message = "error: process 1 has no runs/run; parallel=fsdp needs a shared disk"
    assert message in (tmp_path / "output-1.txt").read_text()


@pytest.mark.faults
@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_two_processes_end_in_every_way(tmp_path, parallel):
    """Twenty times, or as often as the environment says: TRIALS=200."""
    run_trials(ends, endings(int(os.environ.get("TRIALS", 20)), 2, list(CODES), parallel), tmp_path)
