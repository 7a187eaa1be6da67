"""Metrics: what a run measures of its model besides losses, every metrics.every steps."""

from collections.abc import Callable

from configs.registry import Registry
from training.run import Run
from training.terms import check_column


def measure(run: Run) -> dict[str, float]:
    """The metrics of metrics.names, with the model in eval mode and never compiled."""
    values = {}
    with run.evaluating():
        for metric in run.config.metrics.names:
            for name, value in METRICS[metric](run).items():
                check_column(name)
                values[name] = float(value)
    return values


METRICS: Registry[Callable[[Run], dict[str, float]]] = Registry()  # those of user parts
