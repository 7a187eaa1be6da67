"""Schedule: the rate of every step, as a factor of its peak: a pure function of the step."""

import math

from configs.registry import Fraction, NonNegative, build


class WarmupSchedule:
    """Rises through `warmup` steps, or through that share of the run where it is below 1; then goes its own
    way, `after`, from 0 at the peak to 1 at the end."""

    def __init__(self, steps, warmup: NonNegative):
        self.warmup = round(warmup * steps) if warmup < 1 else round(warmup)
        self.steps = steps
        if self.warmup > steps:
            raise ValueError(f"warmup is {self.warmup} steps and the run has {steps}; lower warmup")

    def __call__(self, step):
        if step < self.warmup:
            return (step + 1) / self.warmup
        return self.after((step - self.warmup) / max(1, self.steps - self.warmup))


class Constant(WarmupSchedule):
    def after(self, progress):
        return 1.0


class Wsd(WarmupSchedule):
    """Warm up, stay, and decay in a straight line over the last share of the run."""

    def __init__(self, steps, warmup: NonNegative, decay_ratio: Fraction, min_lr_ratio: Fraction):
        super().__init__(steps, warmup)
        self.decay_ratio, self.min_lr_ratio = decay_ratio, min_lr_ratio

    def after(self, progress):
        left = min(1.0, (1 - progress) / self.decay_ratio) if self.decay_ratio else 1.0
        return self.min_lr_ratio + (1 - self.min_lr_ratio) * left


class Linear(Wsd):
    """Down in a straight line from the end of the warm-up."""

    def __init__(self, steps, warmup: NonNegative, min_lr_ratio: Fraction):
        super().__init__(steps, warmup, 1.0, min_lr_ratio)


class Cosine(WarmupSchedule):
    """Down along half a cosine (arxiv.org/abs/1608.03983)."""

    def __init__(self, steps, warmup: NonNegative, min_lr_ratio: Fraction):
        super().__init__(steps, warmup)
        self.min_lr_ratio = min_lr_ratio

    def after(self, progress):
        return self.min_lr_ratio + (1 - self.min_lr_ratio) * (1 + math.cos(math.pi * progress)) / 2


class Noam(WarmupSchedule):
    """Down with the root of the step, as the transformer of 2017 (arxiv.org/abs/1706.03762)."""

    def after(self, progress):
        step = self.warmup + progress * max(1, self.steps - self.warmup)
        return (max(1, self.warmup) / (step + 1)) ** 0.5


SCHEDULES = {"wsd": Wsd, "linear": Linear, "cosine": Cosine, "constant": Constant, "noam": Noam}


def make_schedule(node, steps):
    return build("schedule", SCHEDULES, node, {"steps": steps})
