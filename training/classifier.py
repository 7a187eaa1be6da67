"""Classifiers: their head, the metrics of their predictions, and a picture of the confusion matrix."""

import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy import ndarray

from configs.schema import Config

MAX_CLASSES = 50  # of a picture


def with_classes(config: Config, classes: list[str]) -> Config:
    """The config with a head for classes, unless init_from has one. The head is that of the model's
    class in transformers: a linear map; of an encoder, after the layer that it has; of a BERT, after
    its pooler."""
    model = config.model
    if config.init_from and model.classes:
        return config
    is_encoder = model.kind == "encoder"
    head = model.head | {"tie_weights": False, "bias": is_encoder, "logit_softcap": None}
    if is_encoder and model.block["kind"] == "post":
        head |= {"mlm_transform": "tanh", "mlm_norm": False}
    return replace(config, model=replace(model, classes=classes, head=head))


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
