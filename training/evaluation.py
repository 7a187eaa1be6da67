"""Evaluation: the losses of a run, and what it predicts. How much of that is right is asked in
training/accuracy.py."""

import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import islice
from typing import Any

import torch

from configs.registry import Registry
from data.batch import Batch
from model.generate.decode import Rows, choose_search
from model.generate.sampling import GREEDY
from training.run import Run
from training.step import micro_batches

Accuracy = Callable[[Run, Batch], tuple[int, int]]  # (number of correct predictions, of all)
ACCURACIES: Registry[Accuracy] = Registry(
    val_accuracy="training.accuracy:masked_accuracy",
    val_exact_match="training.accuracy:exact_match",
)


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

    def batches(loader: Any) -> Iterable[Batch]:
        return watch(loader.evaluation(limit), loader.n / loader.batch_size)

    # a mix has several sources, whose losses are added up
    sums = {name: loss_sum(run, batches(loader)) for name, loader in split.sources.items()}
    total, n_targets = map(sum, zip(*sums.values(), strict=True))
    loss = total / n_targets
    metrics = {"val_loss": loss}
    is_cross_entropy = not hasattr(run.model, "loss")
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
        with run.evaluating():
            counts = [accuracy(run, rows) for rows in islice(batches(split), rank, None, size)]
        correct, total = world.sum(*torch.tensor([(0, 0), *counts]).sum(0)).tolist()
        metrics[name] = correct / total

    metrics |= {f"val_loss_{name}": total / n for name, (total, n) in sums.items() if name}
    has_others = min(split.n, split.batch_size) > 1
    if run.model.kind == "encoder_decoder" and limit is None and has_others:
        shuffled, n = loss_sum(run, map(shuffle_sources, split.evaluation()))
        metrics["val_loss_shuffled_source"] = shuffled / n
    return metrics


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


def shuffle_sources(batch: Batch) -> Batch:
    """The sources of a batch in another order: a model that uses them has a higher loss then."""
    sources = {name: batch.inputs[name].roll(1, 0) for name in batch.inputs if "source" in name}
    return replace(batch, inputs=batch.inputs | sources)


def predict(run: Run, sources: Rows, max_new_tokens: int) -> Rows:
    """The most likely new ids behind each text of a decoder, or for each source."""
    tokenizer = run.data.tokenizer
    prompts = sources
    options: Any = {"max_new_tokens": max_new_tokens, "stop": tokenizer.end_ids}
    if run.model.kind == "encoder_decoder":
        prompts = [[tokenizer.start]] * len(sources)
        options["sources"] = sources
    search = choose_search(run.model, run.data.objective, tokenizer)
    steps = search(prompts, sampling=GREEDY, row_ids=range(len(prompts)), **options)
    # a step has one for every row, None for a row that has ended
    rows = zip(*(step.ids for step in steps), strict=True)
    return [[i for i in row if i is not None] for row in rows]
