"""Evaluation: losses and accuracies on the validation set, and samples of what the model predicts
there."""

import math
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn

from configs.registry import Registry
from configs.schema import IGNORE_INDEX
from data.objectives import Batch
from data.tokenizers.tokenizer import Tokenizer
from model.generate.decode import generate
from training.distributed import World
from training.run import Run
from training.step import micro_batches

PROMPT_TOKENS, NEW_TOKENS = 16, 48


def evaluate(
    run: Run,
    limit: int | None = None,
    watch: Callable[..., Iterator[Batch]] | None = None,
) -> dict[str, float]:
    """Metrics over a fixed subset of `limit` validation examples, or over all of them.
    watch(batches, total) shows how far it is."""
    data, world = run.data, run.world
    split = data.validation

    def batches(rank: int = 0, size: int = 1) -> Iterator[Batch]:
        part = islice(split.evaluation(limit), rank, None, size)
        return watch(part, split.n / split.batch_size / size) if watch else part

    loss = mean_loss(run, batches())
    metrics = {"val_loss": loss, "val_ppl": math.exp(min(loss, 700))}

    if data.objective.bits_per_byte:
        metrics["val_bpb"] = loss / math.log(2) * split.part.n_tokens / split.part.n_bytes

    if name := data.objective.accuracy:
        count_correct = ACCURACIES[name]
        # the loss shares the rows of a batch; here processes share the batches. With FSDP each
        # forward pass needs all processes: all count all batches, which leaves the ratio as it is
        share = (0, 1) if world.parallel == "fsdp" else world.share
        n_correct = 0
        n_predicted = 0
        with run.evaluating():
            for batch in batches(*share):
                correct, predicted = count_correct(run.model, data.tokenizer, batch, world)
                n_correct += correct
                n_predicted += predicted
        n_correct, n_predicted = world.sum(n_correct, n_predicted).tolist()
        metrics[name] = n_correct / n_predicted

    for source, n_tokens in data.train.tokens_seen(run.state.step).items():
        metrics[f"val_loss_{source}"] = mean_loss(run, split.evaluation(limit, source))
        metrics[f"tokens_{source}"] = n_tokens

    if run.model.kind == "encoder_decoder" and limit is None and min(split.n, split.batch_size) > 1:
        shuffled = map(shuffle_sources, split.evaluation())
        metrics["val_loss_shuffled_source"] = mean_loss(run, shuffled)
    return metrics


def mean_loss(run: Run, batches: Iterable[Batch]) -> float:
    """Per target of batches that the processes share: plain cross-entropy."""
    world = run.world
    losses = []
    count = 0
    with run.evaluating():
        for batch in batches:
            share = batch.share(*world.share)
            for micro_batch, _ in micro_batches(share, run.state.micro_batch_size, world.device):
                with world.precision.autocast():
                    losses.append(run.loss_module(*micro_batch)["loss"])
                count += micro_batch.count
    total, count = world.sum(torch.stack(losses).cpu().double().sum(), count).tolist()
    return total / count


def shuffle_sources(batch: Batch) -> Batch:
    """The sources of a batch in another order: a model that uses them has a higher loss then."""
    inputs = {
        name: tensor.roll(1, 0) if name.startswith("source") else tensor
        for name, tensor in batch.inputs.items()
    }
    return batch._replace(inputs=inputs)


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


ACCURACIES: Registry[Callable[..., tuple[int, int]]] = Registry(
    val_accuracy=masked_accuracy,
    val_exact_match=exact_match,
)


def sample(run: Run) -> dict[str, str]:
    """A prediction for the first validation example, {name: text}."""
    model = run.model
    batch = next(run.data.validation.evaluation(1))
    tokenizer = run.data.tokenizer

    with run.evaluating():
        if "source" in batch.inputs or run.data.objective.input_kind != "text":
            return predict_targets(model, tokenizer, batch)[0]
        [tokens] = batch.inputs["tokens"].tolist()
        if model.kind == "encoder":
            predicted, targets = predict_masks(model, batch, run.world)
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
    first_targets = is_target.int().argmax(1).tolist()
    prompts = [
        row[: first + 1]  # up to its start token, which predicts the first target
        for row, first in zip(batch.inputs["tokens"].tolist(), first_targets, strict=True)
    ]
    sources = None
    if "source" in batch.inputs:
        source = batch.inputs["source"]
        visible = batch.inputs.get("source_visible", torch.ones_like(source, dtype=torch.bool))
        sources = select(source, visible)

    longest = max(map(len, targets))
    predictions = continue_greedily(model, tokenizer, prompts, longest, sources)
    decode = tokenizer.decode_with_specials
    return [
        {"source": decode(source), "target": decode(target), "prediction": decode(prediction)}
        for source, target, prediction in zip(sources or prompts, targets, predictions, strict=True)
    ]


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
    """The new ids of each prompt. A step has one for every row, None for a row that has ended."""
    options = {"max_new_tokens": max_new_tokens, "stop": tokenizer.end_ids}
    steps = generate(model, prompts, sources=sources, **options)
    return [[i for i in row if i is not None] for row in zip(*steps, strict=True)]
