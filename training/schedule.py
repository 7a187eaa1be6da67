"""Learning-rate schedules: the factor on the base learning rate, as a function of progress (0 to
1)."""

import math
from collections.abc import Callable
from functools import partial

from configs.registry import Fraction, NonNegative, Registry, build
from configs.schema import TrainConfig
from training.run import TrainState

UNKNOWN_STEPS = 1e12  # before the text is read, or if train.steps is 0: any warmup fits
Schedule = Callable[[float], float]


def warmup_share(steps: float, warmup: float) -> float:
    """The share of the run that is warmup. warmup: a number of steps, or this share itself."""
    if warmup < 1:
        return warmup

    if math.isinf(steps):
        raise ValueError(
            f"warmup is {warmup:g} steps, but train.minutes has no steps; use a fraction"
        )
    if warmup > steps:
        raise ValueError(f"warmup is {warmup:g} steps but the run has only {steps:g}; lower warmup")
    return warmup / steps


def warmed_up(share: float, decay: Schedule, least: float = 0.0) -> Schedule:
    """Linear warmup, then decay(progress of the rest), scaled from 0..1 to least..1."""

    def factor(progress: float) -> float:
        if progress < share or share == 1:
            return progress / share
        return least + (1 - least) * decay((progress - share) / (1 - share))

    return factor


def wsd(
    steps: float,
    warmup: NonNegative,
    decay_ratio: Fraction,
    min_lr_ratio: Fraction,
) -> Schedule:
    """Warmup, stable phase, and linear decay over the last decay_ratio of the rest."""

    def decay(progress: float) -> float:
        return min(1.0, (1 - progress) / decay_ratio) if decay_ratio else 1.0

    return warmed_up(warmup_share(steps, warmup), decay, min_lr_ratio)


def cosine(steps: float, warmup: NonNegative, min_lr_ratio: Fraction) -> Schedule:
    """Cosine decay (arxiv.org/abs/1608.03983)."""

    def decay(progress: float) -> float:
        return (1 + math.cos(math.pi * progress)) / 2

    return warmed_up(warmup_share(steps, warmup), decay, min_lr_ratio)


def noam(steps: float, warmup: NonNegative) -> Schedule:
    """Decay with the inverse square root of the step (arxiv.org/abs/1706.03762)."""
    share = warmup_share(steps, warmup)
    first = max(share, 1 / steps)  # without warmup, the peak is where the first step begins
    if not first:
        raise ValueError("warmup is 0, but train.minutes has no steps; set a fraction")

    def decay(progress: float) -> float:
        return (first / (first + progress * (1 - share))) ** 0.5

    return warmed_up(share, decay)


SCHEDULES: Registry[Callable[..., Schedule]] = Registry(
    wsd=wsd,
    cosine=cosine,
    noam=noam,
    linear=partial(wsd, decay_ratio=1.0),
    constant=partial(wsd, decay_ratio=0.0, min_lr_ratio=0.0),
)


class RunLength:
    """A run ends when the first of train.steps, tokens, epochs and minutes is reached, or when
    train.patience runs out. If batches vary in tokens, the number of steps for train.tokens is an
    estimate, for the schedule. n_examples: the size of the training set."""

    def __init__(self, train: TrainConfig, tokens_per_example: float, n_examples: int = 0):
        settings = [train.steps, train.tokens, train.minutes, train.patience]
        limits = [math.inf if n is None else n for n in settings]
        max_steps, self.tokens, minutes, self.patience = limits
        if train.epochs is not None:
            max_steps = min(max_steps, math.ceil(train.epochs * n_examples / train.batch_size))
        self.max_steps = max_steps
        self.seconds = 60 * minutes

        self.tokens_per_step = round(train.batch_size * tokens_per_example)
        self.scheduled_steps = max_steps  # fewer if train.tokens ends the run before
        self.scheduled_tokens = math.inf  # train.tokens, up to the end of a step
        if train.tokens is not None:
            token_steps = math.ceil(train.tokens / self.tokens_per_step)
            self.scheduled_tokens = token_steps * self.tokens_per_step
            self.scheduled_steps = min(max_steps, token_steps)

    def is_over(self, state: TrainState) -> bool:
        is_last_step = state.step >= self.max_steps or state.tokens >= self.tokens
        is_reached = is_last_step or state.seconds >= self.seconds
        return is_reached or state.evals_since_best >= self.patience

    def progress(self, state: TrainState) -> float:
        """The progress of a run, from 0 to 1, at the middle of the next step, so that neither the
        first nor the last step has a learning rate of 0 (by the clock alone, the first has)."""
        by_steps = (state.step + 0.5) / self.max_steps
        by_tokens = (state.tokens + 0.5 * self.tokens_per_step) / self.scheduled_tokens
        return min(1.0, max(by_steps, by_tokens, state.seconds / self.seconds))


def build_schedule(config: dict, steps: float | None) -> Schedule:
    """Build the schedule of a run. steps: None before it is known, 0 if the run only evaluates,
    infinite if only train.minutes ends it."""
    return build("schedule", SCHEDULES, config, {"steps": steps or UNKNOWN_STEPS})
