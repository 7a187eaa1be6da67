"""Plots of losses against tokens, for one run or several."""

from collections.abc import Iterable
from pathlib import Path

Points = list[tuple[float, float]]
Curve = tuple[str, str, Points]  # label, style, points


def points(rows: Iterable[dict], name: str) -> Points:
    """(tokens, value) of the rows that have this value."""
    return [(row["tokens"], row[name]) for row in rows if name in row]


def draw(curves: list[Curve], path: Path, title: str, lr: Points | None = None) -> None:
    """Plot the curves. title: of their axis. lr: the learning rate, on an axis of its own."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import EngFormatter

    figure = Figure(figsize=(8, 4.5))
    axes = figure.subplots()
    figure.subplots_adjust(left=0.09, right=0.89, bottom=0.12, top=0.96)

    if lr:
        right = axes.twinx()
        right.plot(*zip(*lr, strict=True), ":", color="gray")
        right.set(ylabel="learning rate (dotted)", ylim=(0, None))

    for label, style, line in curves:
        if line:
            axes.plot(*zip(*line, strict=True), style, label=label)

    axes.set(xlabel="tokens", ylabel=title, zorder=1, facecolor="none")
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))  # 1.5M
    axes.grid(alpha=0.3)
    if axes.lines:
        axes.legend()
    figure.savefig(path, dpi=110)


def draw_run(rows: list[dict], path: Path) -> None:
    full = [row for row in rows if row.get("full")]
    others = [row for row in rows if not row.get("full")]
    curves = [
        ("training", "-", points(rows, "loss")),
        ("validation", ".-", points(others, "val_loss")),
        ("full validation", "rx", points(full, "val_loss")),
    ]
    draw(curves, path, "loss (nats/token)", points(rows, "lr"))
