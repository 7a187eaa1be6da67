"""Predictions for validation examples: those of a whole target, token by token, and those of masked
tokens or classes, in one pass; and the accuracy of both."""

import json
from collections.abc import Callable, Iterable
from itertools import islice
from typing import Any, NamedTuple, TextIO

import numpy as np
from numpy import ndarray
from torch import Tensor

from configs.registry import Registry
from configs.schema import IGNORE_INDEX
from data.batch import Batch
from model.generate.decode import Rows, generate
from training.classifier import class_metrics
from training.run import Run


class Answer(NamedTuple):
    """A target, what it answers or continues, and what the model predicts in its place."""

    source: list[int]
    target: list[int]
    prediction: list[int]


def predict_example(run: Run, batch: Batch) -> dict:
    """The first prediction of a batch and what it is made from, as ids or text."""
    classes = run.model.classes
    if not classes and run.model.kind != "encoder":
        return answers(run, batch)[0]._asdict()
    predicted, targets = (ids.tolist() for ids in predict_once(run, batch))
    if classes:
        return {"label": classes[targets[0]], "prediction": classes[predicted[0]]}
    [masked] = batch.inputs["tokens"].tolist()
    return {"masked": masked, "target": targets, "prediction": predicted}


def answers(run: Run, batch: Batch) -> list[Answer]:
    """One for each run of targets; a conversation has several."""
    sources = []
    targets = []
    stop = run.data.tokenizer.end_ids
    for number, is_target in enumerate((batch.targets != IGNORE_INDEX).numpy()):
        # where a run of targets begins, and where it ends
        edges = np.flatnonzero(np.diff(is_target, prepend=False, append=False))
        for first, end in edges.reshape(-1, 2):
            sources.append(source_of(batch.inputs, number, first).tolist())
            targets.append(until_end(batch.targets[number, first:end].tolist(), stop))
    predictions = predict(run, sources, max(map(len, targets)))
    return list(map(Answer, sources, targets, predictions))


def source_of(inputs: dict[str, Tensor], number: int, first: int) -> Tensor:
    """The source without padding; for a decoder, all tokens up to the one that predicts the first
    target."""
    if "source" not in inputs:
        return inputs["tokens"][number, : first + 1]
    source = inputs["source"][number]
    return source[inputs["source_visible"][number]] if "source_visible" in inputs else source


def until_end(ids: list[int], stop: list[int]) -> list[int]:
    """The ids up to the first end token, at which generation stops; a chat template may mark white
    space after it."""
    for number, i in enumerate(ids, 1):
        if i in stop:
            return ids[:number]
    return ids


def predict_once(run: Run, batch: Batch) -> tuple[Tensor, Tensor]:
    """Returns (the most likely token or class, the target) of each position with a target."""
    batch = batch.to(run.world.device)
    is_target = batch.targets != IGNORE_INDEX
    hidden = run.model.hidden(**batch.inputs)
    logits = run.model.head(hidden[is_target])
    return logits.argmax(-1), batch.targets[is_target]


def predict(run: Run, sources: Rows, max_new_tokens: int) -> Rows:
    """The likeliest new ids after each text of a decoder, or for each source."""
    tokenizer = run.data.tokenizer
    options: Any = {"max_new_tokens": max_new_tokens, "stop": tokenizer.end_ids}
    prompts = sources
    if run.model.kind == "encoder_decoder":
        prompts = [[tokenizer.start]] * len(sources)
        options["sources"] = sources

    # a step has an id for every row, None for a row that has ended
    rows = zip(*generate(run.model, prompts, **options), strict=True)
    return [[i for i in row if i is not None] for row in rows]


# (run, batch) -> (number of correct predictions, of all); of a classifier, its confusion matrix
Accuracy = Callable[[Run, Batch], Any]


def masked_accuracy(run: Run, batch: Batch) -> tuple[int, int]:
    predicted, targets = predict_once(run, batch)
    return int((predicted == targets).sum()), batch.count


def exact_match(run: Run, batch: Batch, file: TextIO | None = None) -> tuple[int, int]:
    """Count the exact predictions. Each is also written to the file, as a line."""
    tokenizer = run.data.tokenizer
    decode = tokenizer.decode_with_specials
    found = answers(run, batch)
    correct = 0

    for answer in found:
        correct += decode(answer.prediction) == decode(answer.target)
        if file:
            texts = {name: tokenizer.decode(ids) for name, ids in answer._asdict().items()}
            if run.data.objective.input_kind == "chat":  # its turns end with special tokens
                texts["source"] = decode(answer.source)
            file.write(json.dumps(texts) + "\n")
    return correct, len(found)


def confusion(run: Run, batch: Batch) -> ndarray:
    """How many texts with each label (a row) have each prediction (a column)."""
    predicted, labels = predict_once(run, batch)
    n = len(run.model.classes)
    return (n * labels + predicted).bincount(minlength=n**2).cpu().numpy().reshape(n, n)


ACCURACIES: Registry[Accuracy] = Registry(
    val_accuracy=masked_accuracy,
    confusion=confusion,
    val_exact_match=exact_match,
)


def measure_accuracy(run: Run, batches: Iterable[Batch], name: str, count: Accuracy) -> dict:
    """The share of predictions that are correct, and what else is measured of a classifier."""
    # each process counts its own batches, but with FSDP all: a forward pass needs all processes
    world = run.world
    rank, size = (0, 1) if world.parallel == "fsdp" else (world.rank, world.size)
    n = len(run.model.classes or ())
    counts = np.zeros((n, n) if n else 2)
    with run.evaluating():
        for batch in islice(batches, rank, None, size):
            counts += count(run, batch)

    if size > 1:
        counts = world.sum(*counts.flat).cpu().numpy().reshape(counts.shape)
    return class_metrics(counts) if n else {name: counts[0] / counts[1]}
