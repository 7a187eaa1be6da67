"""Metrics: what a run measures of its model besides losses, every metrics.every steps."""

from collections.abc import Callable

from configs.registry import Registry
from model.moe import MixtureOfExperts
from training.run import Run
from training.trials import check_column


def measure(run: Run) -> dict[str, float]:
    """The metrics of metrics.names, with the model in eval mode and never compiled."""
    values = {}
    with run.evaluating():
        for metric in run.config.metrics.names:
            for name, value in METRICS[metric](run).items():
                check_column(name)
                values[name] = float(value)
    return values


def expert_load(run: Run) -> dict[str, float]:
    """For ffn=moe: the tokens of the busiest expert in any layer, relative to an equal share, for
    one validation example."""
    batch = next(run.data.validation.evaluation(1)).to(run.world.device)
    run.model.hidden(**batch.inputs)
    mixtures = [part for part in run.model.modules() if isinstance(part, MixtureOfExperts)]
    loads = [mixture.load_X.max().item() for mixture in mixtures]
    return {"expert_load": max(loads)} if loads else {}


METRICS: Registry[Callable[[Run], dict[str, float]]] = Registry(expert_load=expert_load)
