"""Evaluation: losses and accuracies on the validation set, and samples of what the model predicts
there."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

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
    model = module.model
    split = data.validation
    n_batches = math.ceil(split.n / split.batch_size)
    loss = mean_loss(module, watch(split.evaluation(limit), n_batches), rows, world)
    metrics = {"val_loss": loss, "val_ppl": math.exp(min(loss, 700))}

    if data.objective == "next_token":
        metrics["val_bpb"] = loss / math.log(2) * split.part.n_tokens / split.part.n_bytes

    if data.objective in ACCURACIES:
        name, count_correct = ACCURACIES[data.objective]
        # processes share the batches, but with FSDP each forward pass needs all processes
        rank, size = (0, 1) if world.parallel == "fsdp" else world.share
        batches = watch(split.evaluation(limit, rank, size), n_batches / size)
        correct = 0
        asked = 0
        with evaluating(module, world):
            for batch in batches:
                right, total = count_correct(model, data.tokenizer, batch, world)
                correct += right
                asked += total
        correct, asked = world.sum(correct, asked).tolist()
        metrics[name] = correct / asked

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
    with torch.no_grad():
        yield
    if world.parallel == "fsdp":
        module.reshard()
    module.train()


def masked_accuracy(
    model: Any, tokenizer: Tokenizer, batch: Batch, world: World
) -> tuple[int, int]:
    """(number of correct predictions, number of predictions)"""
    predicted, targets = predict_masks(model, batch, world)
    return int((predicted == targets).sum()), batch.count


def predict_masks(model: Any, batch: Batch, world: World) -> tuple[Tensor, Tensor]:
    """(the most likely token, the target) of each masked position"""
    batch = batch.to(world.device)
    is_target = batch.targets != IGNORE_INDEX
    with world.precision.autocast():
        logits = model.head(model.hidden(**batch.inputs)[is_target])
    return logits.argmax(-1), batch.targets[is_target]


def exact_match(
    model: nn.Module, tokenizer: Tokenizer, batch: Batch, world: World
) -> tuple[int, int]:
    samples = predict_targets(model, tokenizer, batch)
    return sum(sample["prediction"] == sample["target"] for sample in samples), len(samples)


ACCURACIES: dict[str, tuple[str, Callable[..., tuple[int, int]]]] = {
    "masked": ("val_accuracy", masked_accuracy),
    "pairs": ("val_exact_match", exact_match),
}


def sample(module: LossModule, data: Loaders, world: World) -> dict[str, str]:
    """A prediction for the first validation example, {name: text}."""
    batch = next(data.validation.evaluation(1))
    model = module.model
    tokenizer = data.tokenizer

    with evaluating(module, world):
        if "source" in batch.inputs or data.objective == "pairs":
            return predict_targets(model, tokenizer, batch)[0]
        [tokens] = batch.inputs["tokens"].tolist()
        if model.kind == "encoder":
            predicted, targets = predict_masks(model, batch, world)
            row = {"masked": tokens, "target": targets.tolist(), "prediction": predicted.tolist()}
        else:
            prompt = tokens[:PROMPT_TOKENS]
            [continuation] = continue_greedily(model, tokenizer, [prompt], NEW_TOKENS)
            row = {"prompt": prompt, "continuation": continuation}
    return {name: tokenizer.decode_with_specials(ids) for name, ids in row.items()}


def predict_targets(model: nn.Module, tokenizer: Tokenizer, batch: Batch) -> list[dict[str, str]]:
    """Each source with its target and the model's greedy prediction."""
    is_target = batch.targets != IGNORE_INDEX
    targets = select(batch.targets, is_target)
    starts = select(batch.inputs["tokens"], is_target.cumsum(1) <= is_target)  # to the first target

    sources = None
    if "source" in batch.inputs:
        source = batch.inputs["source"]
        visible = batch.inputs.get("source_visible", torch.ones_like(source, dtype=torch.bool))
        sources = select(source, visible)

    longest = max(map(len, targets))
    predictions = continue_greedily(model, tokenizer, starts, longest, sources)
    samples = []
    for row in zip(sources or starts, targets, predictions, strict=True):
        texts = map(tokenizer.decode_with_specials, row)
        samples.append(dict(zip(("source", "target", "prediction"), texts, strict=True)))
    return samples


def select(rows: Tensor, masks: Tensor) -> list[list[int]]:
    """The ids of each row where its mask is true."""
    return [row[mask].tolist() for row, mask in zip(rows, masks, strict=True)]


def continue_greedily(
    model: nn.Module,
    tokenizer: Tokenizer,
    prompts: list[list[int]],
    max_new_tokens: int,
    sources: list[list[int]] | None = None,
) -> list[list[int]]:
    options = {"max_new_tokens": max_new_tokens, "stop": tokenizer.end_ids}
    steps = generate(model, prompts, sources=sources, **options)
    return [[i for i in row if i is not None] for row in zip(*steps, strict=True)]
