"""Evaluation: the losses and samples of a run, and the accuracy of encoders, of pairs and of
conversations."""

import json
import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import islice
from typing import Any, TextIO

import numpy as np
import torch
from torch import Tensor

from configs.registry import Registry
from configs.schema import IGNORE_INDEX
from data.batch import Batch
from model.generate.beams import beam_search
from model.generate.decode import Rows
from model.generate.sampler import choose_search
from model.generate.sampling import GREEDY
from training.run import Run
from training.step import has_own_loss, micro_batches

PROMPT_TOKENS = 16
NEW_TOKENS = 48
Accuracy = Callable[[Run, Batch], tuple[int, int]]  # (number of correct predictions, of all)


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
            for batch in islice(batches(split), rank, None, size):
                counts += accuracy(run, batch)
        correct, total = world.sum(*counts).tolist()
        metrics[name] = correct / total

    metrics |= {f"val_loss_{name}": total / n for name, (total, n) in sums.items() if name}
    has_others = min(split.n, split.batch_size) > 1
    if run.model.kind == "encoder_decoder" and limit is None and has_others:
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
        [tokens] = batch.inputs["tokens"]
        is_encoder = run.model.kind == "encoder"
        has_own_search = run.data.objective.generate or run.model.generate
        if is_encoder and not has_own_search:
            predicted, targets = predict_masks(run, batch)
            row: dict[str, Any] = {"masked": tokens, "target": targets, "prediction": predicted}
        elif "source" in batch.inputs or run.data.objective.input_kind != "text":
            [row, *_] = predict_targets(run, batch)
        else:
            if is_encoder:  # its text has masks
                [targets] = batch.targets
                tokens = tokens.where(targets == IGNORE_INDEX, targets)
            prompt = tokens[:PROMPT_TOKENS].tolist()
            [continuation] = predict(run, [prompt], NEW_TOKENS)
            row = {"prompt": prompt, "continuation": continuation}
    decode = run.data.tokenizer.decode_with_specials
    return {name: decode(torch.as_tensor(ids).tolist()) for name, ids in row.items()}


# ---- accuracy


def shuffle_sources(batch: Batch) -> Batch:
    """The sources of a batch in another order: a model that uses them has a higher loss then."""
    inputs = dict(batch.inputs)
    for name in inputs:
        if name.startswith("source"):
            inputs[name] = inputs[name].roll(1, 0)
    return replace(batch, inputs=inputs)


def masked_accuracy(run: Run, batch: Batch) -> tuple[int, int]:
    predicted, targets = predict_masks(run, batch)
    return int((predicted == targets).sum()), batch.count


def predict_masks(run: Run, batch: Batch) -> tuple[Tensor, Tensor]:
    """(the most likely token, the target) of each masked position"""
    batch = batch.to(run.world.device)
    is_target = batch.targets != IGNORE_INDEX
    hidden = run.model.hidden(**batch.inputs)
    logits = run.model.head(hidden[is_target])
    return logits.argmax(-1), batch.targets[is_target]


def exact_match(
    run: Run, batch: Batch, beams: int = 0, file: TextIO | None = None
) -> tuple[int, int]:
    """Each answer is also a line of the file."""
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


def predict_targets(run: Run, batch: Batch, beams: int = 0) -> list[dict[str, Any]]:
    """{source, target, prediction: ids} of each run of targets: a conversation has several."""
    rows = []
    stop = set(run.data.tokenizer.end_ids)
    for number, is_target in enumerate((batch.targets != IGNORE_INDEX).numpy()):
        # where a run of targets begins, and where it has ended
        edges = np.flatnonzero(np.diff(is_target, prepend=False, append=False))
        for first, end in edges.reshape(-1, 2):
            source = source_of(batch.inputs, number, first).tolist()
            target = batch.targets[number, first:end].tolist()
            # up to what generation stops at; a chat template may mark white space behind it
            ends = [position for position, i in enumerate(target, 1) if i in stop]
            rows.append({"source": source, "target": target[: min(ends, default=None)]})

    sources = [row["source"] for row in rows]
    longest = max(len(row["target"]) for row in rows)
    predictions = predict(run, sources, longest, beams)
    return [row | {"prediction": ids} for row, ids in zip(rows, predictions, strict=True)]


def source_of(inputs: dict[str, Tensor], number: int, first: int) -> Tensor:
    """Without padding; of a decoder, all up to what predicts the first target."""
    if "source" not in inputs:
        return inputs["tokens"][number, : first + 1]
    source = inputs["source"][number]
    return source[inputs["source_visible"][number]] if "source_visible" in inputs else source


def predict(run: Run, sources: Rows, max_new_tokens: int, beams: int = 0) -> Rows:
    """The new ids behind each text of a decoder, or for each source, greedily or by beam search."""
    tokenizer = run.data.tokenizer
    options: Any = {"max_new_tokens": max_new_tokens, "stop": tokenizer.end_ids}
    if beams:
        options |= {"beams": beams, "length_penalty": 1.0}
        start = [[tokenizer.start]]
        found = [beam_search(run.model, start, [source], **options) for source in sources]
        return [[step.ids[0] for step in steps] for steps in found]
    prompts = sources
    if run.model.kind == "encoder_decoder":
        prompts = [[tokenizer.start]] * len(sources)
        options["sources"] = sources
    search = choose_search(run.model, run.data.objective, tokenizer)
    options |= {"sampling": GREEDY, "row_ids": range(len(prompts))}
    steps = (step.ids for step in search(prompts, **options))
    # a step has one for every row, None for a row that has ended
    rows = zip(*steps, strict=True)
    return [[i for i in row if i is not None] for row in rows]


ACCURACIES: Registry[Accuracy] = Registry(
    val_accuracy=masked_accuracy,
    val_exact_match=exact_match,
)
