"""The evaluation of a run: its loss on the validation set, and the accuracy of its predictions."""

import json
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from itertools import islice
from typing import TextIO

import numpy as np
import torch
from torch import Tensor

from configs.registry import Registry
from data.batch import Batch
from training.run import Run
from training.samples import predict_masks, predict_targets
from training.step import micro_batches

Accuracy = Callable[[Run, Batch], tuple[int, int]]  # (number of correct predictions, of all)


def evaluate(
    run: Run,
    limit: int | None = None,
    watch: Callable[..., Iterable[Batch]] = lambda batches, total: batches,
    exact: Accuracy | None = None,
) -> dict[str, float]:
    """Metrics over a fixed subset of `limit` validation examples, or over all of them.
    watch(batches, total) shows the progress. exact: an exact_match that replaces the accuracy of
    the objective."""
    data, world = run.data, run.world
    split = data.validation

    def batches() -> Iterable[Batch]:
        return watch(split.evaluation(limit), split.n / split.batch_size)

    metrics = mean_losses(run, batches())
    loss = metrics["val_loss"]
    is_cross_entropy = not hasattr(run.model, "loss")
    if is_cross_entropy:
        metrics["val_ppl"] = math.exp(min(loss, 700))

    if is_cross_entropy and data.objective.bits_per_byte:
        bits = loss / math.log(2)
        metrics["val_bpb"] = bits * split.part.n_tokens / split.part.n_bytes

    name = "val_exact_match" if exact else data.objective.accuracy
    if name:
        accuracy = exact or ACCURACIES[name]
        # each process has its own batches; but a forward pass with FSDP needs all processes, so
        # there each counts all batches, and the ratio is the same
        rank, size = (0, 1) if world.parallel == "fsdp" else world.share
        counts = np.zeros(2)
        with run.evaluating():
            for batch in islice(batches(), rank, None, size):
                counts += accuracy(run, batch)
        correct, total = world.sum(*counts).tolist()
        metrics[name] = correct / total

    return metrics


def mean_losses(run: Run, batches: Iterable[Batch]) -> dict[str, float]:
    """The main loss of LossModule per target: val_loss, and val_loss_NAME of each source of a mix.
    The processes share the batches."""
    world = run.world
    losses: defaultdict[str, list[Tensor]] = defaultdict(list)  # by source
    counts: Counter[str] = Counter()
    with run.evaluating():
        for batch in batches:
            counts[batch.source] += batch.count
            share = batch.share(*world.share)
            for micro_batch, _ in micro_batches(share, run.state.micro_batch_size, world.device):
                losses[batch.source].append(run.loss_module(*micro_batch)["loss"])
    sums = {
        name: world.sum(torch.stack(terms).cpu().double().sum()).item()
        for name, terms in losses.items()
    }
    means = {f"val_loss_{name}": sums[name] / counts[name] for name in sums if name}
    return {"val_loss": sum(sums.values()) / counts.total()} | means


def masked_accuracy(run: Run, batch: Batch) -> tuple[int, int]:
    predicted, targets = predict_masks(run, batch)
    return int((predicted == targets).sum()), batch.count


def exact_match(
    run: Run, batch: Batch, beams: int = 0, file: TextIO | None = None
) -> tuple[int, int]:
    """Count the exact predictions. Each is also written to the file, as a line."""
    tokenizer = run.data.tokenizer
    decode = tokenizer.decode_with_specials
    rows = predict_targets(run, batch, beams)
    correct = 0
    for row in rows:
        correct += decode(row["prediction"]) == decode(row["target"])
        if file:
            texts = {name: tokenizer.decode(ids) for name, ids in row.items()}
            if run.data.objective.input_kind == "chat":  # its turns end with special tokens
                texts["source"] = decode(row["source"])
            file.write(json.dumps(texts) + "\n")
    return correct, len(rows)


ACCURACIES: Registry[Accuracy] = Registry(
    val_accuracy=masked_accuracy,
    val_exact_match=exact_match,
)
