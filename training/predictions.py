"""What a model predicts for validation examples, targets and masked tokens; the accuracy of both."""

import json
import warnings
from collections.abc import Callable, Iterable
from itertools import islice
from pathlib import Path
from typing import Any, TextIO

import numpy as np
from numpy import ndarray
from torch import Tensor

from configs.registry import Registry
from configs.schema import IGNORE_INDEX
from data.batch import Batch
from data.tokenizers.tokenizer import Tokenizer
from model.generate.decode import Rows, generate
from training.run import Run

MAX_CLASSES = 50  # of a picture


def predict_example(run: Run, batch: Batch) -> dict:
    """The first prediction of a batch and what it is made from, as ids or text."""
    classes = run.model.classes
    if not classes and run.model.kind != "encoder":
        return predict_targets(run, batch)[0]
    predicted, targets = (ids.tolist() for ids in predict_masks(run, batch))
    if classes:
        return {"label": classes[targets[0]], "prediction": classes[predicted[0]]}
    [masked] = batch.inputs["tokens"].tolist()
    return {"masked": masked, "target": targets, "prediction": predicted}


def predict_targets(run: Run, batch: Batch) -> list[dict]:
    """{source, target, prediction: ids} of each run of targets: a conversation has several."""
    rows = []
    for number, is_target in enumerate((batch.targets != IGNORE_INDEX).numpy()):
        # where a run of targets begins, and where it ends
        edges = np.flatnonzero(np.diff(is_target, prepend=False, append=False))
        for first, end in edges.reshape(-1, 2):
            source = source_of(batch.inputs, number, first).tolist()
            target = batch.targets[number, first:end].tolist()
            rows.append({"source": source, "target": until_end(target, run.data.tokenizer)})

    sources = [row["source"] for row in rows]
    longest = max(len(row["target"]) for row in rows)
    predictions = predict(run, sources, longest)
    for row, prediction in zip(rows, predictions, strict=True):
        row["prediction"] = prediction
    return rows


def source_of(inputs: dict[str, Tensor], number: int, first: int) -> Tensor:
    """The source without padding; for a decoder, all tokens up to the one that predicts the first
    target."""
    if "source" not in inputs:
        return inputs["tokens"][number, : first + 1]
    source = inputs["source"][number]
    return source[inputs["source_visible"][number]] if "source_visible" in inputs else source


def until_end(ids: list[int], tokenizer: Tokenizer) -> list[int]:
    """The ids up to the first end token, at which generation stops; a chat template may mark white
    space after it."""
    stop = set(tokenizer.end_ids)
    ends = [number for number, i in enumerate(ids, 1) if i in stop]
    return ids[: min(ends, default=None)]


def predict_masks(run: Run, batch: Batch) -> tuple[Tensor, Tensor]:
    """Returns (the most likely token, the target) of each masked position."""
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
    predicted, targets = predict_masks(run, batch)
    return int((predicted == targets).sum()), batch.count


def exact_match(run: Run, batch: Batch, file: TextIO | None = None) -> tuple[int, int]:
    """Count the exact predictions. Each is also written to the file, as a line."""
    tokenizer = run.data.tokenizer
    decode = tokenizer.decode_with_specials
    rows = predict_targets(run, batch)
    correct = 0

    for row in rows:
        correct += decode(row["prediction"]) == decode(row["target"])
        if file:
            texts = {name: tokenizer.decode(ids) for name, ids in row.items()}
            if run.data.objective.input_kind == "chat":  # its turns end with special tokens
                texts["source"] = decode(row["source"])
            file.write(json.dumps(texts) + "\n")
    return correct, len(rows)


def confusion(run: Run, batch: Batch) -> ndarray:
    """How many texts with each label have each prediction; the matrix in one row."""
    predicted, labels = predict_masks(run, batch)
    n = len(run.model.classes)
    return (n * labels + predicted).bincount(minlength=n**2).cpu().numpy()


def class_metrics(counts: ndarray) -> dict:
    """Accuracy; macro F1, the mean over the classes that occur, as label or as prediction; and the
    confusion matrix, which is `counts`: a row for each label, a column for each prediction."""
    correct = counts.diagonal()
    occurrences = counts.sum(0) + counts.sum(1)
    f1 = 2 * correct / occurrences.clip(1)
    return {
        "val_accuracy": correct.sum() / counts.sum(),
        "val_f1": f1[occurrences > 0].mean(),
        "confusion": counts.astype(int).tolist(),
    }


def draw_confusion(confusion: list[list[int]], classes: list[str], path: Path) -> None:
    """Draw a confusion matrix, unless it is too large."""
    from matplotlib.figure import Figure

    if len(classes) > MAX_CLASSES:
        return
    side = 3 + 0.4 * len(classes)
    figure = Figure(figsize=(side, side), layout="constrained")
    axes = figure.subplots()
    axes.imshow(confusion, cmap="Blues", alpha=0.6)  # light, under black numbers

    for (label, prediction), count in np.ndenumerate(confusion):
        axes.text(prediction, label, str(count), ha="center", va="center")

    names = [f"{name:.20}" for name in classes]
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_ticks(range(len(names)), names, parse_math=False)

    axes.tick_params("x", rotation=90)
    axes.set(xlabel="prediction", ylabel="label")
    with warnings.catch_warnings(action="ignore"):  # about characters that the font lacks
        figure.savefig(path)


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
    counts = np.zeros(n**2 or 2)
    with run.evaluating():
        for batch in islice(batches, rank, None, size):
            counts += count(run, batch)

    if size > 1:
        counts = world.sum(*counts).cpu().numpy()
    return class_metrics(counts.reshape(n, n)) if n else {name: counts[0] / counts[1]}
