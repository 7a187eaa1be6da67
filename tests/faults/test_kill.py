"""A run killed at any moment resumes and comes to the same bytes as one that was never killed."""

import random
import signal
import time

import pytest

from tests.faults.harness import (
    STEPS,
    child,
    equal,
    exit_code,
    overridden,
    reference,
    run_trials,
    train,
    verified_steps,
)
from tests.faults.shim import Shim, kill, operations


def start_and_kill(cwd, overrides, act):
    """Whether the signal came before the end of the run."""
    code = exit_code(child(cwd, overrides, act))
    assert code in (-signal.SIGKILL, -signal.SIGALRM, 0)
    return code != 0


def resumes(cwd):
    """Only undamaged checkpoints, before and after; then the same end of the run."""
    folder = cwd / "runs/run"
    before = verified_steps(folder)
    code, output = train(cwd, overridden("resume=auto"))
    assert code == 0, output
    assert verified_steps(folder)[-1] == STEPS >= max(before, default=0)
    equal(folder)


def killed_at(operation, cwd):
    start_and_kill(cwd, overridden(), Shim(operation, kill))
    resumes(cwd)


def test_smoke(tmp_path):
    n = len(operations(tmp_path, overridden()))
    run_trials(killed_at, random.Random(0).sample(range(1, n + 1), 12), tmp_path)


@pytest.mark.faults
def test_at_every_operation(tmp_path):
    n = len(operations(tmp_path, overridden()))
    assert run_trials(killed_at, range(1, n + 1), tmp_path) == n
    print(f"{n} kills, one at every operation of the disk")


def resumed_and_killed_at(operation, cwd):
    """Killed once in the middle, and again while it resumes."""
    assert start_and_kill(cwd, overridden(), Shim(110, kill))
    start_and_kill(cwd, overridden("resume=auto"), Shim(operation, kill))
    resumes(cwd)


@pytest.mark.faults
def test_at_every_operation_of_a_resumed_run(tmp_path):
    assert start_and_kill(tmp_path, overridden(), Shim(110, kill))
    n = len(operations(tmp_path, overridden("resume=auto")))
    assert run_trials(resumed_and_killed_at, range(1, n + 1), tmp_path) == n
    print(f"{2 * n} kills, two in each run")


def killed_while_tokenizing(operation, cwd):
    """An incomplete cache is not used: the text is tokenized again, to the same tokens."""
    own = overridden(f"data.cache={cwd}/tokens")
    assert start_and_kill(cwd, own, Shim(operation, kill, below=f"{cwd}/tokens"))
    assert not [
        path for path in (cwd / "tokens").glob("text-*") if path.is_dir() and not path.suffix
    ]
    assert train(cwd, [*own, "resume=auto"])[0] == 0
    last = "checkpoints/step-00000004/model.safetensors"
    assert (cwd / "runs/run" / last).read_bytes() == (reference() / last).read_bytes()


@pytest.mark.faults
def test_while_tokenizing(tmp_path):
    """At each operation until the rename."""
    n = run_trials(killed_while_tokenizing, range(1, 12), tmp_path)
    print(f"{n} kills while tokenizing")


def killed_again_and_again(seed, cwd):
    """By a timer, wherever the run is; the newest checkpoint never gets older."""
    draw, newest, kills = random.Random(seed), 0, 0
    began = time.perf_counter()
    assert train(cwd, overridden("name=timed"))[0] == 0
    longest = time.perf_counter() - began
    for _ in range(12):
        seconds = draw.uniform(0.02, 1) * longest

        def act(seconds=seconds):
            signal.setitimer(signal.ITIMER_REAL, seconds)

        kills += start_and_kill(cwd, overridden("resume=auto"), act)
        before, newest = newest, max(verified_steps(cwd / "runs/run"), default=0)
        assert newest >= before
    assert kills, "the timers hit the run"
    resumes(cwd)


@pytest.mark.faults
def test_at_random_moments_again_and_again(tmp_path):
    run_trials(killed_again_and_again, range(48), tmp_path)
