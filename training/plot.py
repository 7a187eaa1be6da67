"""Plots of losses against tokens, for one run or several."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from configs.cli import escape

Points = list[tuple[float, float]]


class Curve(NamedTuple):
    label: str
    style: str
    points: Points


def points(rows: Sequence[dict[str, Any]], name: str) -> Points:
    """(tokens, value) of the rows that have this value."""
    return [(row["tokens"], row[name]) for row in rows if row.get(name) is not None]


def draw(curves: Sequence[Curve], path: Path, lr: Points | None = None) -> None:
    """lr: the learning rate, on an axis of its own."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import EngFormatter

    figure = Figure(figsize=(8, 4.5))
    right_margin = 0.89 if lr else 0.97
    margins = {"left": 0.09, "right": right_margin, "bottom": 0.12, "top": 0.96}
    axes = figure.subplots(gridspec_kw=margins)
    if lr:
        right = axes.twinx()
        right.plot(*zip(*lr, strict=True), ":", color="gray")
        right.set(ylabel="learning rate (dotted)", ylim=(0, None))
    for curve in curves:
        if curve.points:
            label = escape(curve.label).replace("$", r"\$")
            axes.plot(*zip(*curve.points, strict=True), curve.style, label=label)
    axes.set(xlabel="tokens", ylabel="loss (nats/token)")
    axes.set(zorder=1, facecolor="none")  # above the other axis
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))  # 1.5M
    axes.grid(alpha=0.3)
    if axes.lines:
        axes.legend()
    figure.savefig(path, dpi=110)


def draw_run(rows: Sequence[dict[str, Any]], path: Path) -> None:
    partial = [row for row in rows if row.get("full") is False]
    full = [row for row in rows if row.get("full") is True]
    evaluations = points(partial, "val_loss")
    best = sorted(evaluations, key=lambda point: (point[1] != point[1], point[1]))[:1]  # NaN last
    curves = [
        Curve("training", "-", points(rows, "loss")),
        Curve("validation", ".-", evaluations),
        Curve("best validation", "k*", best),
        Curve("full validation", "rx", points(full, "val_loss")),
    ]
    draw(curves, path, points(rows, "lr"))
