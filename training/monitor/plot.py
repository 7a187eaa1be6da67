"""Plots of losses against tokens, for one run or several."""

from configs.cli import escape
from training.monitor.metrics import rows


def points(rows, name):
    pairs = [(row["tokens"], row[name]) for row in rows if name in row and "tokens" in row]
    return [pair for pair in pairs if max(map(abs, pair)) < 1e18]  # matplotlib overflows near 1e300


def draw(curves, path, lr=()):
    """curves: (label, style, [(tokens, loss)]) each; lr: [(tokens, learning rate)], on an axis of its own."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import EngFormatter

    figure = Figure(figsize=(8, 4.5))
    margins = {"left": 0.09, "right": 0.89 if lr else 0.97, "bottom": 0.12, "top": 0.96}
    axes = figure.subplots(gridspec_kw=margins)
    if lr:
        right = axes.twinx()
        right.plot(*zip(*lr, strict=True), ":", color="gray")
        right.set(ylabel="learning rate (dotted)", ylim=(0, None))
    for label, style, line in curves:
        if line:
            axes.plot(*zip(*line, strict=True), style, label=escape(label).replace("$", r"\$"))
    axes.set(
        xlabel="tokens", ylabel="loss (nats/token)", zorder=1, facecolor="none"
    )  # above the other axis
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))  # 1.5M
    axes.grid(alpha=0.3)
    if axes.lines:
        axes.legend()
    path.unlink(missing_ok=True)  # it may be a hard link to another file
    figure.savefig(path, dpi=110)


def draw_run(metrics, path):
    logged = list(rows(metrics))
    partial, full = ([row for row in logged if row.get("full") is flag] for flag in (False, True))
    evaluations = points(partial, "val_loss")
    best = sorted(evaluations, key=lambda point: (point[1] != point[1], point[1]))[:1]  # NaN last
    curves = [("training", "-", points(logged, "loss")), ("validation", ".-", evaluations)]
    curves += [("best validation", "k*", best), ("full validation", "rx", points(full, "val_loss"))]
    draw(curves, path, points(logged, "lr"))
