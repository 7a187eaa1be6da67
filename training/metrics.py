"""Metrics: what a run measures of its model besides losses, every metrics.every steps."""

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from configs.registry import Registry
from model.block import blocks_of
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


def residual_rms(run: Run) -> dict[str, float]:
    """The RMS of the hidden states after each block, for one validation example."""
    values: dict[str, float] = {}

    def note(block: nn.Module, inputs: Any, output: Tensor) -> None:
        mean_square = output.float().square().mean()
        values[f"residual_rms/{len(values)}"] = mean_square.sqrt().item()

    hooks = [block.register_forward_hook(note) for block in blocks_of(run.model)]
    read_example(run)
    for hook in hooks:
        hook.remove()
    return values


def expert_load(run: Run) -> dict[str, float]:
    """For ffn=moe: the tokens of the busiest expert in any layer, relative to an equal share, for
    one validation example."""
    read_example(run)
    mixtures = [part for part in run.model.modules() if isinstance(part, MixtureOfExperts)]
    loads = [mixture.load_X.max().item() for mixture in mixtures]
    return {"expert_load": max(loads)} if loads else {}


def read_example(run: Run) -> None:
    batch = next(run.data.validation.evaluation(1)).to(run.world.device)
    run.model.hidden(**batch.inputs)


METRICS: Registry[Callable[[Run], dict[str, float]]] = Registry(
    residual_rms=residual_rms,
    expert_load=expert_load,
)
