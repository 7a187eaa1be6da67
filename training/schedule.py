"""Schedule: the rate of every step, as a factor of its peak: a pure function of the step."""

import math

from model.build import build


class Warmed:
    """Rises through `warmup` steps, or through that share of the run where it is below 1; then goes its own
    way, `after`, from 0 at the peak to 1 at the end."""

    def __init__(self, steps, warmup: float):
        self.warmup = round(warmup * steps) if warmup < 1 else round(warmup)
        self.steps = steps
        if warmup < 0:
            raise ValueError(f"warmup must be 0 or more and is {warmup}")
        if self.warmup > steps:
            raise ValueError(f"warmup is {self.warmup} steps and the run has {steps}; lower warmup")

    def __call__(self, step):
        if step < self.warmup:
            return (step + 1) / self.warmup
        return self.after((step - self.warmup) / max(1, self.steps - self.warmup))


def check_share(name, value):
    if not 0 <= value <= 1:
        raise ValueError(f"{name} must be from 0 to 1 and is {value}")


class Constant(Warmed):
    def after(self, progress):
        return 1.0


class Wsd(Warmed):
    """Warm up, stay, and decay in a straight line over the last share of the run."""

    def __init__(self, steps, warmup: float, decay: float, floor: float):
        super().__init__(steps, warmup)
        check_share("decay", decay)
        check_share("floor", floor)
        self.decay, self.floor = decay, floor

    def after(self, progress):
        left = min(1.0, (1 - progress) / self.decay) if self.decay else 1.0
        return self.floor + (1 - self.floor) * left


class Linear(Wsd):
    """Down in a straight line from the end of the warm-up."""

    def __init__(self, steps, warmup: float, floor: float):
        super().__init__(steps, warmup, 1.0, floor)


class Cosine(Warmed):
    """Down along half a cosine (arxiv.org/abs/1608.03983)."""

    def __init__(self, steps, warmup: float, floor: float):
        super().__init__(steps, warmup)
        check_share("floor", floor)
        self.floor = floor

    def after(self, progress):
        return self.floor + (1 - self.floor) * (1 + math.cos(math.pi * progress)) / 2


class Noam(Warmed):
    """Down with the root of the step, as the transformer of 2017 (arxiv.org/abs/1706.03762)."""

    def after(self, progress):
        step = self.warmup + progress * max(1, self.steps - self.warmup)
        return (max(1, self.warmup) / (step + 1)) ** 0.5


SCHEDULES = {"wsd": Wsd, "linear": Linear, "cosine": Cosine, "constant": Constant, "noam": Noam}


def make_schedule(node, steps):
    return build("schedule", SCHEDULES, node, {"steps": steps})
