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
    home,
    overridden,
    reference,
    run_trials,
    train,
    verified_steps,
)
from tests.faults.shim import Shim, kill, operations


def resumes(room):
    """Only undamaged checkpoints, before and after; then the same end of the run."""
    folder = room / "runs/run"
    before = verified_steps(folder)
    code, output = train(room, overridden("resume=auto"))
    assert code == 0, output
    assert verified_steps(folder)[-1] == STEPS >= max(before, default=0)
    equal(folder)


def killed_at(operation, room):
    assert exit_code(child(room, overridden(), Shim(operation, kill))) in (-signal.SIGKILL, 0)
    resumes(room)


def test_smoke(tmp_path):
    n = len(operations(tmp_path, overridden()))
    run_trials(killed_at, random.Random(0).sample(range(1, n + 1), 12), tmp_path)


@pytest.mark.faults
def test_at_every_operation(tmp_path):
    n = len(operations(tmp_path, overridden()))
    assert run_trials(killed_at, range(1, n + 1), tmp_path) == n
    print(f"{n} kills, one at every operation of the disk")


def resumed_and_killed_at(operation, room):
    """Killed once in the middle, and again while it resumes."""
    assert exit_code(child(room, overridden(), Shim(110, kill))) == -signal.SIGKILL
    assert exit_code(child(room, overridden("resume=auto"), Shim(operation, kill))) in (-signal.SIGKILL, 0)
    resumes(room)


@pytest.mark.faults
def test_at_every_operation_of_a_resumed_run(tmp_path):
    assert exit_code(child(tmp_path, overridden(), Shim(110, kill))) == -signal.SIGKILL
    n = len(operations(tmp_path, overridden("resume=auto")))
    assert run_trials(resumed_and_killed_at, range(1, n + 1), tmp_path) == n
    print(f"{2 * n} kills, two in each run")


def killed_again_and_again(seed, room):
    """By a timer, wherever the run is; the newest checkpoint never gets older."""
    draw, folder, newest, kills = random.Random(seed), room / "runs/run", 0, 0
    began = time.perf_counter()
    assert train(room, overridden("name=timed"))[0] == 0
    longest = time.perf_counter() - began
    for _ in range(12):
        moment = draw.uniform(0.02, 1) * longest
        code = exit_code(
            child(
                room,
                overridden("resume=auto"),
                lambda moment=moment: signal.setitimer(signal.ITIMER_REAL, moment),
            )
        )
        assert code in (-signal.SIGALRM, 0), code
        kills += code != 0
        steps = verified_steps(folder)
        assert max(steps, default=0) >= newest
        newest = max(steps, default=0)
    with open(room.parent / "kills.txt", "a") as file:
        file.write(f"{kills}\n")
    resumes(room)


def killed_while_preparing(operation, room):
    """An incomplete cache is not used: the text is tokenized again, to the same tokens."""
    own = overridden(f"data.cache={room}/tokens")
    act = Shim(operation, kill, below=f"{room}/tokens")
    assert exit_code(child(room, own, act)) == -signal.SIGKILL
    assert not [path for path in (room / "tokens").glob("text-*") if path.is_dir() and not path.suffix]
    assert train(room, [*own, "resume=auto"])[0] == 0
    last = "checkpoints/step-00000004/model.safetensors"
    assert (room / "runs/run" / last).read_bytes() == (reference() / last).read_bytes()


@pytest.mark.faults
def test_while_tokenizing(tmp_path):
    """At each mkdir, fsync and rename."""
    n = run_trials(killed_while_preparing, range(1, 9), tmp_path)
    print(f"{n} kills while tokenizing")


@pytest.mark.faults
def test_at_random_moments_again_and_again(tmp_path):
    home()
    run_trials(killed_again_and_again, range(48), tmp_path)
    kills = sum(map(int, (tmp_path / "kills.txt").read_text().split()))
    assert kills >= 48, "the timers hit the runs"
    print(f"{kills} kills by a timer")
