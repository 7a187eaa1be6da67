"""A run that is killed at any moment resumes, and ends equal to one that was never killed.

There are 150 + 150 + 25 + 400 kills here; `pytest -m faults` has all but two of them.
"""

import random
import shutil
import signal
import time
from functools import cache, partial
from itertools import product

import pytest

from model.runs import read_best, step_name
from tests.faults.harness import (
    HOME,
    OVERRIDES,
    RUN,
    assert_equal,
    assert_resumes,
    end,
    resume,
    run,
    start,
    valid_steps,
)
from tests.faults.shim import Shim, kill, recorded
from tests.parts import thin

KILLS = 150  # of one kind of run, at least one at each operation
TIMERS = 10  # that end a run in a row


def is_killed(cwd, act):
    """Start or continue the run; whether it is killed before its end. No checkpoint is damaged, and
    the newest is never older than it was."""
    before = valid_steps(cwd / RUN)
    code, output = run(cwd, "resume=auto", act=act)
    assert code <= 0, output
    assert max(valid_steps(cwd / RUN), default=0) >= max(before, default=0)
    return code < 0


EVERYWHERE = product(["new", "resumed"], range(KILLS))
USUAL = [("new", 50), ("new", 100)]


@pytest.mark.parametrize("kind, number", thin(EVERYWHERE, USUAL))
def test_at_every_operation(kind, number, tmp_path):
    run = recorded(kind)
    assert len(run.log) <= KILLS
    shutil.copytree(run.before, tmp_path, dirs_exist_ok=True)
    at = 1 + number * len(run.log) // KILLS
    assert is_killed(tmp_path, Shim(kill, at))
    assert_resumes(tmp_path)


def fine_tune(cwd, act=None):
    """With so high a learning rate that the weights it begins with stay the best."""
    of_the_model = ("size", "tokenizer", "model")
    usual = [o for o in OVERRIDES if not o.startswith(of_the_model)]
    more = ["optimizer.lr=10", f"init_from={HOME / RUN}", "resume=auto"]
    return end(start(cwd, [*usual, *more], act))


@cache
def whole_tuned_run():
    cwd = HOME / "tuned"
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
    cwd = HOME / "timed"
    cwd.mkdir()
    start = time.perf_counter()
    resume(cwd)
    return time.perf_counter() - start


@pytest.mark.faults
@pytest.mark.parametrize("seed", range(40))
def test_at_random_moments_again_and_again(seed, tmp_path):
    """The system ends the process, whatever it does."""
    draw = random.Random(seed)
    kills = 0
    while kills < TIMERS:
        seconds = draw.uniform(0.01, seconds_of_a_run())
        if is_killed(tmp_path, partial(signal.setitimer, signal.ITIMER_REAL, seconds)):
            kills += 1
        else:  # the run was faster
            assert_equal(tmp_path / RUN)
            shutil.rmtree(tmp_path / RUN)
    assert_resumes(tmp_path)
