"""The evaluation of a run, by train.py and by the command in evaluate.py: its loss on the
validation set, and the accuracy of its predictions."""

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable

import torch

from data.batch import Batch
from training.predictions import ACCURACIES, Accuracy, measure_accuracy
from training.run import Run
from training.step import micro_batches


def evaluate(
    run: Run,
    limit: int | None = None,
    watch: Callable[..., Iterable[Batch]] = lambda batches, total: batches,
    exact: Accuracy | None = None,
) -> dict:
    """Metrics over a fixed subset of `limit` validation examples, or over all of them; only the
    latter have a confusion matrix. watch(batches, total) shows the progress. exact: an exact_match
    that replaces the accuracy of the objective."""
    data = run.data
    loader = data.validation

    def batches() -> Iterable[Batch]:
        return watch(loader.evaluation(limit), loader.n / loader.batch_size)

    metrics = mean_losses(run, batches())
    loss = metrics["val_loss"]
    if not math.isfinite(loss):
        reason = f"step {run.state.step}: the validation loss is not finite ({loss})"
        raise FloatingPointError(f"{reason}; try a lower optimizer.lr")
    is_cross_entropy = not hasattr(run.model, "loss")
    if is_cross_entropy:
        metrics["val_ppl"] = math.exp(min(loss, 700))

    if is_cross_entropy and data.objective.bits_per_byte:
        bits = loss / math.log(2)
        metrics["val_bpb"] = bits * loader.file.n_tokens / loader.file.n_bytes

    name = "val_exact_match" if exact else data.objective.accuracy
    if name:
        metrics |= measure_accuracy(run, batches(), name, exact or ACCURACIES[name])
    if limit:
        metrics.pop("confusion", None)
    return metrics


def mean_losses(run: Run, batches: Iterable[Batch]) -> dict[str, float]:
    """The main loss of LossModule per target: val_loss, and val_loss_NAME of each source of a mix.
    The processes share the batches."""
    world = run.world
    losses = defaultdict(list)  # by source
    counts: Counter[str] = Counter()
    with run.evaluating():
        for batch in batches:
            counts[batch.source] += batch.count
            share = batch.share(world.rank, world.size)
            for micro_batch, _ in micro_batches(share, run.state.micro_batch_size, world.device):
                losses[batch.source].append(run.loss_module(*micro_batch)["loss"])
    sums = {
        name: world.sum(torch.stack(terms).cpu().double().sum()).item()
        for name, terms in losses.items()
    }
    means = {f"val_loss_{name}": sums[name] / counts[name] for name in sums if name}
    return {"val_loss": sum(sums.values()) / counts.total()} | means
