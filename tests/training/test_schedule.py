"""Schedules are functions of the step, with the values their formulas have."""

import pytest

from configs.registry import build
from tests.parts import part
from training.schedule import SCHEDULES


def schedule(name, steps=100, **changes):
    return build("schedule", SCHEDULES, part("schedule", name, **changes), {"steps": steps})


@pytest.mark.parametrize("name", SCHEDULES)
def test_all_rise_to_their_peak(name):
    rate = schedule(name, warmup=10)
    assert [rate(step) for step in range(10)] == pytest.approx([(i + 1) / 10 for i in range(10)])
    assert max(map(rate, range(100))) <= 1 and rate(10) > 0.9
    assert min(map(rate, range(100))) >= 0


@pytest.mark.parametrize(
    ("name", "changes", "values"),
    [
        ("constant", {}, {20: 1, 99: 1}),
        ("linear", {"floor": 0.0}, {20: 1, 60: 0.5, 99: 1 / 80}),
        ("linear", {"floor": 0.1}, {20: 1, 60: 0.55}),
        ("cosine", {"floor": 0.1}, {20: 1, 60: 0.55, 40: 0.1 + 0.9 * (1 + 0.5**0.5) / 2}),
        ("wsd", {"decay": 0.5, "floor": 0.0}, {20: 1, 60: 1, 80: 0.5}),
        ("wsd", {"decay": 0.0, "floor": 0.0}, {20: 1, 99: 1}),
        ("noam", {}, {19: 1, 79: 0.5}),
    ],
)
def test_values(name, changes, values):
    rate = schedule(name, warmup=20, **changes)
    assert {step: rate(step) for step in values} == pytest.approx(values)


def test_a_warmup_below_one_is_a_share():
    assert schedule("constant", 200, warmup=0.1).warmup == 20
    assert schedule("wsd", 2).warmup == 0, "the usual one suits the shortest run"


@pytest.mark.parametrize(
    ("name", "changes", "sentence"),
    [
        ("wsd", {"warmup": 101}, "warmup is 101 steps and the run has 100; lower warmup"),
        ("cosine", {"warmup": -1}, "warmup must be 0 or more and is -1"),
        ("cosine", {"floor": 2}, "floor must be from 0 to 1 and is 2"),
        ("wsd", {"decay": -0.5}, "decay must be from 0 to 1 and is -0.5"),
        ("wsd", {"decay": float("nan")}, "decay is nan; expected a finite number"),
    ],
)
def test_what_cannot_be(name, changes, sentence):
    with pytest.raises(ValueError, match=sentence):
        schedule(name, **changes)
