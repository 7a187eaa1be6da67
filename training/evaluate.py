"""Evaluation: losses and accuracies on the validation set, and samples of what the model predicts
there."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from configs.schema import IGNORE_INDEX
from data.corpus import Loaders
from data.objectives import Batch
from data.tokenizers.tokenizer import Tokenizer
from model.generate.decode import generate
from training.distributed import World
from training.step import LossModule, mean_loss

PROMPT_TOKENS, NEW_TOKENS = 16, 48


def evaluate(
    module: LossModule,
    data: Loaders,
    world: World,
    rows: int,
    limit: int | None = None,
    watch: Callable[..., Iterator[Batch]] = lambda batches, total: iter(batches),
) -> dict[str, float]:
    """Metrics over a fixed subset of `limit` validation examples, or over all of them; `rows` at a
    time. watch: shows how far it is."""
    model, split = module.model, data.validation
    n = math.ceil((split.n if limit is None else min(limit, split.n)) / split.batch_size)
    loss = mean_loss(module, watch(split.evaluation(limit), n), rows, world)
    metrics = {"val_loss": loss, "val_ppl": math.exp(min(loss, 700))}
    if data.objective == "next_token":
        metrics["val_bpb"] = loss / math.log(2) * split.part.n_tokens / split.part.n_bytes
    if data.objective in ACCURACIES:
        name, count_correct = ACCURACIES[data.objective]
        share = (
            (0, 1) if world.parallel == "fsdp" else world.share
        )  # forward passes in step, or not
        correct = asked = 0
        with evaluating(module, world):
            for batch in watch(split.evaluation(limit, *share), n / share[1]):
                right, total = count_correct(model, data.tokenizer, batch, world)
                correct += right
                asked += total
        sums = world.sum(correct, asked).tolist()
        metrics[name] = sums[0] / sums[1]
    if model.kind == "encoder_decoder" and limit is None and min(split.n, split.batch_size) > 1:
        several = (batch for batch in split.evaluation() if len(batch.targets) > 1)
        shuffled = map(shuffle_sources, several)
        metrics["val_loss_shuffled_source"] = mean_loss(module, shuffled, rows, world)
    return metrics


def shuffle_sources(batch: Batch) -> Batch:
    """Each row gets the source of another: a model that ignores its source loses nothing."""
    inputs = {
        name: tensor.roll(1, 0) if name.startswith("source") else tensor
        for name, tensor in batch.inputs.items()
    }
    return batch._replace(inputs=inputs)


@contextmanager
def evaluating(module: Any, world: World) -> Iterator[None]:
    """Without dropout, and with whole weights, for other calls than a training step makes."""
    module.eval()
    if world.parallel == "fsdp":
        module.unshard()
    yield
    if world.parallel == "fsdp":
        module.reshard()
    module.train()


@torch.no_grad()
def masked_accuracy(
    model: Any, tokenizer: Tokenizer, batch: Batch, world: World
) -> tuple[int, int]:
    """(number of correct predictions, number of predictions)"""
    batch = batch.to(world.device)
    is_target = batch.targets != IGNORE_INDEX
    with world.precision.autocast():
        predicted = model.head(model.hidden(**batch.inputs)[is_target]).argmax(-1)
    return int((predicted == batch.targets[is_target]).sum()), batch.count


def exact_match(
    model: nn.Module, tokenizer: Tokenizer, batch: Batch, world: World
) -> tuple[int, int]:
    samples = predict_targets(model, tokenizer, batch)
    return sum(sample["prediction"] == sample["target"] for sample in samples), len(samples)


ACCURACIES: dict[str, tuple[str, Callable[..., tuple[int, int]]]] = {
    "masked": ("val_accuracy", masked_accuracy),
    "pairs": ("val_exact_match", exact_match),
}


@torch.no_grad()
def sample(module: LossModule, data: Loaders, world: World) -> dict[str, str]:
    """A prediction for the first validation example, {name: text}."""
    batch = next(data.validation.evaluation(1))
    model, tokenizer = module.model, data.tokenizer
    with evaluating(module, world):
        if "source" in batch.inputs or data.objective == "pairs":
            return predict_targets(model, tokenizer, batch)[0]
        if model.kind == "encoder":
            ids = predict_masks(model, batch.to(world.device))
        else:
            [prompt] = batch.inputs["tokens"][:, :PROMPT_TOKENS].tolist()
            [continuation] = generate_ids(model, tokenizer, [prompt], NEW_TOKENS)
            ids = {"prompt": prompt, "continuation": continuation}
    return {name: tokenizer.decode_with_specials(tokens) for name, tokens in ids.items()}


def predict_masks(model: Any, batch: Batch) -> dict[str, list[int]]:
    """The tokens of the first row, and its targets with the most likely predictions."""
    is_target = batch.targets[0] != IGNORE_INDEX
    predicted = model(**batch.inputs)[0].argmax(-1)
    return {
        "masked": batch.inputs["tokens"][0].tolist(),
        "target": batch.targets[0][is_target].tolist(),
        "prediction": predicted[is_target].tolist(),
    }


def predict_targets(model: nn.Module, tokenizer: Tokenizer, batch: Batch) -> list[dict[str, str]]:
    """Each source with its target and the model's greedy prediction."""
    targets = [[i for i in row if i != IGNORE_INDEX] for row in batch.targets.tolist()]
    longest = max(map(len, targets))
    if "source" in batch.inputs:
        source = batch.inputs["source"]
        visible = batch.inputs.get("source_visible", torch.ones_like(source, dtype=torch.bool))
        sources = [row[keep].tolist() for row, keep in zip(source, visible, strict=True)]
        starts = [[tokenizer.specials["start"]] for _ in sources]
        predictions = generate_ids(model, tokenizer, starts, longest, sources)
    else:
        firsts = [int((row != IGNORE_INDEX).nonzero()[0]) for row in batch.targets]
        rows = zip(batch.inputs["tokens"], firsts, strict=True)
        sources = [row[: first + 1].tolist() for row, first in rows]
        predictions = generate_ids(model, tokenizer, sources, longest)
    samples = []
    for row in zip(sources, targets, predictions, strict=True):
        texts = map(tokenizer.decode_with_specials, row)
        samples.append(dict(zip(("source", "target", "prediction"), texts, strict=True)))
    return samples


def generate_ids(
    model: nn.Module,
    tokenizer: Tokenizer,
    prompts: list[list[int]],
    max_new_tokens: int,
    sources: list[list[int]] | None = None,
) -> list[list[int]]:
    """Greedy continuations."""
    rows: list[list[int]] = [[] for _ in prompts]
    options = {"max_new_tokens": max_new_tokens, "stop": tokenizer.end_ids}
    for ids in generate(model, prompts, sources=sources, **options):
        for row, i in zip(rows, ids, strict=True):
            if i is not None:
                row.append(i)
    return rows
