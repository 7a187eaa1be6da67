"""Evaluation: the losses and samples of a run."""

import math
from collections.abc import Callable, Iterable
from itertools import islice

import numpy as np
import torch

from configs.schema import IGNORE_INDEX
from data.batch import Batch
from training.accuracy import (
    ACCURACIES,
    Accuracy,
    predict,
    predict_masks,
    predict_targets,
    shuffle_sources,
)
from training.run import Run
from training.step import has_own_loss, micro_batches

PROMPT_TOKENS = 16
NEW_TOKENS = 48


def evaluate(
    run: Run,
    limit: int | None = None,
    watch: Callable[..., Iterable[Batch]] = lambda batches, total: batches,
    exact: Accuracy | None = None,
) -> dict[str, float]:
    """Metrics over a fixed subset of `limit` validation examples, or over all of them.
    watch(batches, total) shows how far it is. exact: an exact_match in place of the accuracy that
    the objective has."""
    data, world = run.data, run.world
    split = data.validation

    def batches() -> Iterable[Batch]:
        return watch(split.evaluation(limit), split.n / split.batch_size)

    # a mix has several sources, whose losses are added up
    sums = {}
    for source, loader in split.sources.items():
        watched = watch(loader.evaluation(limit), loader.n / loader.batch_size)
        sums[source] = loss_sum(run, watched)
    loss = sum(total for total, _ in sums.values()) / sum(count for _, count in sums.values())
    metrics = {"val_loss": loss}
    is_cross_entropy = not has_own_loss(run.model)
    if is_cross_entropy:
        metrics["val_ppl"] = math.exp(min(loss, 700))

    if is_cross_entropy and data.objective.bits_per_byte:
        parts = [loader.part for loader in split.sources.values()]
        tokens_per_byte = sum(part.n_tokens for part in parts) / sum(part.n_bytes for part in parts)
        metrics["val_bpb"] = loss / math.log(2) * tokens_per_byte

    name = "val_exact_match" if exact else data.objective.accuracy
    if name:
        accuracy = exact or ACCURACIES[name]
        # each process has its own batches; but a forward pass of FSDP needs all processes: there
        # each counts all batches, and the ratio is the same
        rank, size = (0, 1) if world.parallel == "fsdp" else world.share
        counts = np.zeros(2)
        with run.evaluating():
            for batch in islice(batches(), rank, None, size):
                counts += accuracy(run, batch)
        correct, total = world.sum(*counts).tolist()
        metrics[name] = correct / total

    for source, (total, count) in sums.items():
        if source:
            metrics[f"val_loss_{source}"] = total / count

    has_other_sources = min(split.n, split.batch_size) > 1
    if run.model.kind == "encoder_decoder" and limit is None and has_other_sources:
        shuffled = map(shuffle_sources, split.evaluation())
        metrics["val_loss_shuffled_source"] = mean_loss(run, shuffled)
    return metrics


def mean_loss(run: Run, batches: Iterable[Batch]) -> float:
    total, count = loss_sum(run, batches)
    return total / count


def loss_sum(run: Run, batches: Iterable[Batch]) -> tuple[float, int]:
    """(cross-entropy without what is added to it in training, or the loss() of the network; number
    of targets) of batches that the processes share."""
    world = run.world
    losses = []
    count = 0
    with run.evaluating():
        for batch in batches:
            count += batch.count
            share = batch.share(*world.share)
            for micro_batch, _ in micro_batches(share, run.state.micro_batch_size, world.device):
                losses.append(run.loss_module(*micro_batch)["loss"])
    total = torch.stack(losses).cpu().double().sum()
    return world.sum(total).item(), count


def sample(run: Run) -> dict[str, str]:
    """A prediction for the first validation example, {name: text}."""
    batch = next(run.data.validation.evaluation(1))
    with run.evaluating():
        [tokens] = batch.inputs["tokens"].tolist()
        is_encoder = run.model.kind == "encoder"
        has_own_search = run.data.objective.generate or run.model.generate
        if is_encoder and not has_own_search:
            predicted, targets = predict_masks(run, batch)
            row = {"masked": tokens, "target": targets.tolist(), "prediction": predicted.tolist()}
        elif "source" in batch.inputs or run.data.objective.input_kind != "text":
            [row, *_] = predict_targets(run, batch)
        else:
            if is_encoder:  # its text has masks
                [targets] = batch.targets.tolist()
                pairs = zip(tokens, targets, strict=True)
                tokens = [token if target == IGNORE_INDEX else target for token, target in pairs]
            prompt = tokens[:PROMPT_TOKENS]
            [continuation] = predict(run, [prompt], NEW_TOKENS)
            row = {"prompt": prompt, "continuation": continuation}
    decode = run.data.tokenizer.decode_with_specials
    return {name: decode(ids) for name, ids in row.items()}
