"""The parts of a training step; train.py has the step itself."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from configs.schema import LossConfig
from data.batch import Batch
from data.shuffle import hash_seed
from model.loss import chunk_gradients, loss
from training.run import Run
from training.terms import Terms
from training.trials import fit_on_gpu

CPU_TOKENS = 1 << 14  # in a micro-batch on a CPU, at most


class LossModule(nn.Module):
    """Maps a batch to its losses: the module that is compiled, sharded, and wrapped by DDP."""

    def __init__(self, model: nn.Module, config: LossConfig):
        super().__init__()
        self.model: Any = model
        self.options = vars(config)
        if hasattr(model, "loss") and any(self.options.values()):
            raise ValueError("loss.* is for cross-entropy; this model has a loss() of its own")
        self.chunk_gradients = chunk_gradients  # compile_module may compile it
        contributors = [module for module in model.modules() if hasattr(module, "losses")]
        self.terms = Terms(contributors) if contributors else None

    def forward(
        self, inputs: dict[str, Tensor], targets: Tensor, count: int, weights: Tensor | None = None
    ) -> dict[str, Tensor]:
        """Returns {name: loss, summed over the targets}; the caller divides by the number of targets
        in the whole batch. "loss" is the cross-entropy, or loss(hidden, targets) if the network has
        this method; in training, each term of losses() is an item of its own."""
        hidden = self.model.hidden(**inputs)
        if hasattr(self.model, "loss"):
            labels = [targets] if weights is None else [targets, weights]
            losses = {"loss": self.model.loss(hidden, *labels)}
        else:
            weights = weights if self.training else None
            options = self.options if self.training else {}
            head = self.model.head
            total, _ = loss(hidden, head, targets, count, weights, self.chunk_gradients, **options)
            losses = {"loss": total}
        if self.training and self.terms:
            self.terms.add_to(losses, count)
        return losses


def seed_step(seed: int, step: int, rank: int) -> None:
    """Dropout is a function of (seed, step), so no random state has to be saved."""
    torch.manual_seed(int(hash_seed("step", seed, step, rank) >> 1))


def read_batch(run: Run, step: int) -> Batch:
    """The rows of this process."""
    world = run.world
    rows = run.data.train.batch(step)
    if world.size > 1:
        rows = rows.share(world.rank, world.size)
    if world.device.type == "cuda":
        rows = rows.map_tensors(Tensor.pin_memory)
    return rows


def micro_batches(batch: Batch, size: int, device: torch.device) -> Iterator[tuple[Batch, bool]]:
    """Yield (rows of the batch, whether they are the last), cut and counted on the host."""
    n = len(batch.targets)
    for start in range(0, n, size):
        rows = batch.rows(start, start + size) if size < n else batch
        yield rows.to(device), start + size >= n


def fit_micro_batch(run: Run, train_module: Any) -> int:
    """The rows of a micro-batch."""
    config = run.config
    rows = config.train.batch_size // run.world.size
    size = config.train.micro_batch_size
    if isinstance(size, int):
        return min(size, rows)
    if run.world.device.type == "cuda":
        return fit_on_gpu(run, train_module, rows)
    return max(1, min(rows, CPU_TOKENS // config.model.context_length))
