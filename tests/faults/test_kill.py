"""A run that is killed at any moment resumes, and ends equal to one that was never killed.

`pytest -m faults` kills 150 + 300 + 25 + 400 runs here.
"""

import random
import shutil
import signal
import time
from functools import cache, partial

import pytest

from model.checkpoint import read_best, step_name
from tests.faults.harness import (
    RUN,
    assert_equal,
    end,
    home,
    overridden,
    resume,
    start,
    verified_steps,
)
from tests.faults.shim import Shim, kill, kill_after_a_checkpoint, operations

KILLS = 150  # of one kind of run, at least one at each operation
TIMERS = 10  # that end a run in a row


def is_killed(cwd, act):
    """Start or continue the run; whether it is killed before its end. No checkpoint is damaged, and
    the newest is never older than it was."""
    before = verified_steps(cwd / RUN)
    code = end(start(cwd, overridden("resume=auto"), act))
    assert code <= 0, (cwd / "output").read_text()
    assert max(verified_steps(cwd / RUN), default=0) >= max(before, default=0)
    return code < 0


def assert_resumes(cwd):
    resume(cwd)
    assert_equal(cwd / RUN)


@cache
def number_of_operations(kind):
    """Of a new run, or of one that was killed and resumes."""
    cwd = home() / f"{kind}-operations"
    cwd.mkdir()
    if kind == "resumed":
        assert is_killed(cwd, kill_after_a_checkpoint)
    count = len(operations(cwd, "resume=auto"))
    assert count <= KILLS
    return count


def check(kind, number, cwd):
    if kind == "resumed":
        assert is_killed(cwd, kill_after_a_checkpoint)
    at = 1 + number * number_of_operations(kind) // KILLS
    assert is_killed(cwd, Shim(kill, at))
    assert_resumes(cwd)


@pytest.mark.parametrize("number", range(0, KILLS, 50))
def test_smoke(number, tmp_path):
    check("new", number, tmp_path)


@pytest.mark.faults
@pytest.mark.parametrize("kind", ["new", "resumed"])
@pytest.mark.parametrize("number", range(KILLS))
def test_at_every_operation(number, kind, tmp_path):
    check(kind, number, tmp_path)


def set_timer(seconds):
    """The system then ends this process, whatever it does."""
    signal.setitimer(signal.ITIMER_REAL, seconds)


def fine_tune(cwd, act=None):
    """With so high a learning rate that the weights it begins with stay the best."""
    of_the_model = ("size", "tokenizer", "model")
    arguments = [o for o in overridden("optimizer.lr=10") if not o.startswith(of_the_model)]
    return end(start(cwd, [*arguments, f"init_from={home() / RUN}", "resume=auto"], act))


@cache
def whole_tuned_run():
    cwd = home() / "tuned"
    cwd.mkdir()
    assert fine_tune(cwd) == 0
    assert read_best(cwd / RUN) == step_name(0)
    return cwd / RUN


@pytest.mark.faults
@pytest.mark.parametrize("at", range(1, 100, 4))
def test_a_fine_tuned_run(at, tmp_path):
    """It has a checkpoint before its first step."""
    expected = whole_tuned_run()
    assert fine_tune(tmp_path, Shim(kill, at)) < 0
    assert fine_tune(tmp_path) == 0
    assert_equal(tmp_path / RUN, expected)


@cache
def seconds_of_a_run():
    cwd = home() / "timed"
    cwd.mkdir()
    start = time.perf_counter()
    resume(cwd)
    return time.perf_counter() - start


@pytest.mark.faults
@pytest.mark.parametrize("seed", range(40))
def test_at_random_moments_again_and_again(seed, tmp_path):
    draw = random.Random(seed)
    kills = 0
    while kills < TIMERS:
        seconds = draw.uniform(0.01, seconds_of_a_run())
        if is_killed(tmp_path, partial(set_timer, seconds)):
            kills += 1
        else:  # the run was faster
            assert_equal(tmp_path / RUN)
            shutil.rmtree(tmp_path / RUN)
    assert_resumes(tmp_path)
