"""Learning-rate schedules: the factor on the base learning rate is a pure function of the step."""

import math
from functools import partial

from configs.registry import Fraction, NonNegative


class Schedule:
    """Linear warmup, then decay(progress), where progress runs from 0 at the end of the warmup to 1."""

    def __init__(self, steps, warmup, decay):
        self.warmup = (
            round(warmup * steps) if warmup < 1 else round(warmup)
        )  # below 1: a fraction of the run
        self.steps, self.decay = steps, decay
        if self.warmup > steps:
            raise ValueError(
                f"warmup is {self.warmup} steps but the run has only {steps}; lower warmup"
            )

    def __call__(self, step):
        if step < self.warmup:
            return (step + 1) / self.warmup
        return self.decay((step - self.warmup) / max(1, self.steps - self.warmup))


def wsd(steps, warmup: NonNegative, decay_ratio: Fraction, min_lr_ratio: Fraction):
    """Warmup, stable, and linear decay over the last decay_ratio of the rest."""

    def decay(progress):
        left = min(1.0, (1 - progress) / decay_ratio) if decay_ratio else 1.0
        return min_lr_ratio + (1 - min_lr_ratio) * left

    return Schedule(steps, warmup, decay)


def cosine(steps, warmup: NonNegative, min_lr_ratio: Fraction):
    """Half a cosine (arxiv.org/abs/1608.03983)."""
    scale = (1 - min_lr_ratio) / 2
    return Schedule(
        steps, warmup, lambda progress: min_lr_ratio + scale * (1 + math.cos(math.pi * progress))
    )


def noam(steps, warmup: NonNegative):
    """Inverse square root of the step (arxiv.org/abs/1706.03762)."""
    n = Schedule(steps, warmup, None).warmup
    return Schedule(
        steps, n, lambda progress: (max(1, n) / (n + progress * max(1, steps - n) + 1)) ** 0.5
    )


SCHEDULES = {"wsd": wsd, "cosine": cosine, "noam": noam}
SCHEDULES["linear"] = partial(wsd, decay_ratio=1.0)
SCHEDULES["constant"] = partial(wsd, decay_ratio=0.0, min_lr_ratio=0.0)
