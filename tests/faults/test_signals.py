"""After a signal, a run finishes its step, saves, exits with 75, and resumes to the same bytes."""

import signal
from functools import partial

import pytest

import train
from tests.faults.harness import (
    OVERRIDES,
    RUN,
    STEPS,
    assert_equal,
    assert_resumes,
    end,
    output_of,
    resume,
    run,
    start,
    valid_steps,
)
from tests.faults.shim import send
from training.distributed import STOP_SIGNALS

RESUME = "python train.py name=run resume=true"
PHASES = {  # name: (the owner of a function, its name, the call in which the signal comes)
    "data": (train, "load_data", 1),
    "first evaluation": (train, "evaluate", 1),
    "step": (train, "update", 2),
    "evaluation": (train, "evaluate", 2),
    "sample": (train, "sample", 1),
    "checkpoint": (train.Checkpointer, "write", 2),
    "last step": (train, "update", STEPS),
    "last evaluation": (train, "evaluate", 3),
    "last checkpoint": (train.Checkpointer, "finish", 1),
    "final evaluation": (train, "evaluate", 4),
}
BEFORE = {signal.SIGINT: 130, signal.SIGTERM: -signal.SIGTERM, signal.SIGUSR2: -signal.SIGUSR2}


@pytest.mark.faults
@pytest.mark.parametrize("number", STOP_SIGNALS)
@pytest.mark.parametrize("phase", PHASES)
def test_in_every_phase(phase, number, tmp_path):
    code, output = run(tmp_path, act=partial(send, *PHASES[phase], number))
    if phase == "data":  # the loop has not begun
        assert code == BEFORE[number], output
    else:
        assert code == 75, output
        assert RESUME in output
    assert_resumes(tmp_path)


def test_a_second_signal_ends_the_run_at_once(tmp_path):
    both = partial(send, train, "update", 3, signal.SIGTERM, signal.SIGINT)
    output_of(tmp_path, act=both, code=128 + signal.SIGINT)
    assert valid_steps(tmp_path / RUN)[-1] < 3
    assert_resumes(tmp_path)


def test_a_stopped_sweep(tmp_path):
    """Its other runs are not started, and the stopped one can be resumed."""
    usual = [override for override in OVERRIDES if not override.startswith("name=")]
    stop = partial(send, train, "update", 2, signal.SIGTERM)
    code = end(start(tmp_path, ["-m", "seed=0,1", *usual], stop))
    output = (tmp_path / "output").read_text()
    assert code == 75, output
    [folder] = tmp_path.glob("runs/sweep-*/*/")
    name = folder.relative_to(tmp_path / "runs")
    assert f"python train.py name={name} resume=true" in output
    resume(tmp_path, f"name={name}")
    assert_equal(folder)
