"""Schedules are functions of the progress, with the values of their formulas."""

import pytest

from configs.compose import compose
from tests.parts import part
from training.run import TrainState
from training.schedule import SCHEDULES, RunLength, build_schedule

pytestmark = pytest.mark.quick


def schedule(name, **changes):
    return build_schedule(part("schedule", name, **changes), steps=100)


@pytest.mark.parametrize("warmup", [10, 0.1])
@pytest.mark.parametrize("name", SCHEDULES)
def test_warmup_is_linear_up_to_the_peak(name, warmup):
    factor = schedule(name, warmup=warmup)
    assert [factor(share) for share in (0.0, 0.025, 0.05)] == pytest.approx([0.0, 0.25, 0.5])
    assert factor(0.1) == pytest.approx(1.0)
    assert schedule(name, warmup=100)(1.0) == 1.0
    assert all(0 <= factor(step / 100) <= 1 + 1e-9 for step in range(101))


@pytest.mark.parametrize(
    "name, changes, values",
    [
        ("constant", {}, {0.2: 1, 1.0: 1}),
        ("linear", {"min_lr_ratio": 0.1}, {0.2: 1, 0.6: 0.55, 1.0: 0.1}),
        ("cosine", {"min_lr_ratio": 0.1}, {0.6: 0.55, 0.4: 0.1 + 0.9 * (1 + 0.5**0.5) / 2}),
        ("wsd", {"decay_ratio": 0.5, "min_lr_ratio": 0.0}, {0.2: 1, 0.6: 1, 0.8: 0.5}),
        ("noam", {}, {0.2: 1, 0.8: 0.5}),
    ],
)
def test_values(name, changes, values):
    factor = schedule(name, warmup=20, **changes)
    assert {share: factor(share) for share in values} == pytest.approx(values)


@pytest.mark.parametrize(
    "overrides, step, seconds, progress",
    [
        ("train.steps=10", 4, 0, 0.45),
        ("train.steps=10", 10, 0, None),
        ("train.tokens=1025", 1, 0, 0.5),  # 512 tokens a step, so 3 steps
        ("train.epochs=1.5", 5, 0, 5.5 / 15),
        ("train.minutes=1", 99, 45, 0.75),
        ("train.minutes=1", 0, 61, None),
        ("train.minutes=1 train.steps=10", 4, 30, 0.5),
    ],
)
def test_progress_follows_steps_or_the_clock(overrides, step, seconds, progress):
    """Of the middle of the next step; the first limit ends the run."""
    config = compose(["train.batch_size=4", *overrides.split()])
    length = RunLength(config.train, tokens_per_example=128, n_examples=40)
    state = TrainState(step, tokens=512 * step, seconds=seconds)
    assert length.is_over(state) == (progress is None)
    assert progress is None or length.progress(state) == pytest.approx(progress)


def test_longer_batches_than_usual_do_not_shorten_a_run_of_steps():
    length = RunLength(compose(["train.steps=10"]).train, tokens_per_example=128)
    assert length.progress(TrainState(4, tokens=10**9)) == pytest.approx(0.45)
