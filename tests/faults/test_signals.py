"""A run that gets a signal finishes its step, saves and exits 75; a second signal ends it at once."""

import os
import random
import re
import signal

import pytest

from model.transformer import Decoder
from tests.faults.harness import (
    STEPS,
    child,
    copy_run,
    equal,
    exit_code,
    overridden,
    run_trials,
    train,
    verified_steps,
)
from tests.faults.shim import Shim
from tests.training.runs import rows
from training import distributed as signals

CALLS = 150  # forward passes of such a run, about: trial steps, steps, evaluations and samples


def at_call(number, *kinds):
    """Send these signals in the n-th forward pass."""

    def act():
        real, count = Decoder.hidden, 0

        def hidden(*args, **rest):
            nonlocal count
            count += 1
            if count == number:
                for kind in kinds:
                    os.kill(os.getpid(), kind)
            return real(*args, **rest)

        Decoder.hidden = hidden

    return act


def stops_and_resumes(item, cwd):
    number, kind = item
    code, output = train(cwd, overridden(), at_call(number, kind))
    assert code in (0, 75, -kind, 130), (
        output
    )  # before the first step, a signal has its default effect
    folder = cwd / "runs/run"
    if code == 75:
        assert re.search(rf"stopped by {kind.name} (after step|before the first step)", output), (
            output
        )
        done = max((step for step, _ in rows(folder, "step", "loss")), default=0)
        assert max(verified_steps(folder), default=0) == done, (
            "the checkpoint is of the last finished step"
        )
        with open(cwd.parent / "stopped.txt", "a") as file:
            file.write(f"{kind.name}\n")
    assert train(cwd, overridden("resume=auto"))[0] == 0
    equal(folder)


def moments(n, seed):
    draw = random.Random(seed)
    return [(draw.randrange(1, CALLS), draw.choice(signals.STOP_SIGNALS)) for _ in range(n)]


def test_smoke(tmp_path):
    run_trials(stops_and_resumes, moments(6, 1), tmp_path)
    assert (tmp_path / "stopped.txt").exists()


@pytest.mark.faults
def test_at_many_moments(tmp_path):
    run_trials(stops_and_resumes, moments(90, 2), tmp_path)
    stopped = (tmp_path / "stopped.txt").read_text().split()
    assert set(stopped) == {"SIGINT", "SIGTERM", "SIGUSR2"} and len(stopped) > 30


def stops_while_saving(operation, cwd):
    def act(name, real, args):
        os.kill(os.getpid(), signal.SIGTERM)

    code, output = train(cwd, overridden(), Shim(operation, act, below="runs/run/checkpoints"))
    assert code in (0, 75), output
    assert train(cwd, overridden("resume=auto"))[0] == 0
    equal(cwd / "runs/run")


@pytest.mark.faults
def test_while_saving(tmp_path):
    run_trials(stops_while_saving, range(1, 120, 4), tmp_path)


def test_a_second_signal_ends_the_run_at_once(tmp_path):
    twice = at_call(40, signal.SIGTERM, signal.SIGINT)
    assert exit_code(child(tmp_path, overridden(), twice)) == 128 + signal.SIGINT
    assert verified_steps(tmp_path / "runs/run") != [STEPS]
    assert train(tmp_path, overridden("resume=auto"))[0] == 0
    equal(tmp_path / "runs/run")


def test_a_run_that_is_stopped_before_its_first_step_starts_again(tmp_path):
    """By the command that it prints, with the weights it was to start from."""
    copy_run(tmp_path)
    data = [override for override in overridden() if override.startswith(("data", "train", "eval"))]
    stop = Shim(1, lambda *_: os.kill(os.getpid(), signal.SIGTERM), below="runs/new/metrics.jsonl")
    code, output = train(tmp_path, [*data, "init_from=runs/run", "name=new"], stop)
    assert code == 75, output
    [command] = re.findall(r"before the first step. To start again: python train.py (.*)", output)
    code, output = train(tmp_path, command.split())
    assert code == 0 and verified_steps(tmp_path / "runs/new")[-1] == STEPS, output


def test_signal_handlers_are_restored():
    before = [signal.getsignal(number) for number in signals.STOP_SIGNALS]
    with signals.catching_signals():
        assert all(signal.getsignal(number) is signals.on_signal for number in signals.STOP_SIGNALS)
    assert [signal.getsignal(number) for number in signals.STOP_SIGNALS] == before
