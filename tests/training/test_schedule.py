"""Schedules are functions of the step with the values of their formulas."""

import pytest

from configs.registry import build
from tests.parts import part
from training.schedule import SCHEDULES


def schedule(name, steps=100, **changes):
    return build("schedule", SCHEDULES, part("schedule", name, **changes), {"steps": steps})


@pytest.mark.parametrize("name", SCHEDULES)
def test_warmup_is_linear_up_to_the_peak(name):
    lr_factor = schedule(name, warmup=10)
    assert [lr_factor(step) for step in range(10)] == pytest.approx(
        [(i + 1) / 10 for i in range(10)]
    )
    assert max(map(lr_factor, range(100))) <= 1 and lr_factor(10) > 0.9
    assert min(map(lr_factor, range(100))) >= 0


@pytest.mark.parametrize(
    ("name", "changes", "values"),
    [
        ("constant", {}, {20: 1, 99: 1}),
        ("linear", {"min_lr_ratio": 0.0}, {20: 1, 60: 0.5, 99: 1 / 80}),
        ("linear", {"min_lr_ratio": 0.1}, {20: 1, 60: 0.55}),
        ("cosine", {"min_lr_ratio": 0.1}, {20: 1, 60: 0.55, 40: 0.1 + 0.9 * (1 + 0.5**0.5) / 2}),
        ("wsd", {"decay_ratio": 0.5, "min_lr_ratio": 0.0}, {20: 1, 60: 1, 80: 0.5}),
        ("wsd", {"decay_ratio": 0.0, "min_lr_ratio": 0.0}, {20: 1, 99: 1}),
        ("noam", {}, {19: 1, 79: 0.5}),
    ],
)
def test_values(name, changes, values):
    lr_factor = schedule(name, warmup=20, **changes)
    assert {step: lr_factor(step) for step in values} == pytest.approx(values)


def test_a_warmup_below_one_is_a_fraction():
    assert schedule("constant", 200, warmup=0.1).warmup == 20
    assert schedule("wsd", 2).warmup == 0, "the default suits the shortest run"


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("wsd", {"warmup": 101}, "warmup is 101 steps but the run has only 100; lower warmup"),
        ("cosine", {"warmup": -1}, "warmup is -1; expected a number at least 0"),
        ("cosine", {"min_lr_ratio": 2}, "min_lr_ratio is 2; expected a number from 0 to 1"),
        ("wsd", {"decay_ratio": float("nan")}, "decay_ratio is nan"),
    ],
)
def test_wrong_options_are_refused(name, changes, message):
    with pytest.raises(ValueError, match=message):
        schedule(name, **changes)
