"""Plots of losses against tokens, for one run or several."""

from configs.cli import escape
from training.monitor.metrics import rows


def points(rows, name):
    pairs = [(row["tokens"], row[name]) for row in rows if name in row and "tokens" in row]
    return [pair for pair in pairs if max(map(abs, pair)) < 1e18]  # matplotlib overflows near 1e300


def draw(curves, path):
    """curves: (label, style, [(tokens, loss)]) each."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.5))
    axes = figure.subplots(gridspec_kw={"left": 0.09, "right": 0.97, "bottom": 0.12, "top": 0.96})
    for label, style, line in curves:
        if line:
            axes.plot(*zip(*line, strict=True), style, label=escape(label).replace("$", r"\$"), markersize=3)
    axes.set(xlabel="tokens", ylabel="loss (nats/token)")
    axes.grid(alpha=0.3)
    if axes.lines:
        axes.legend()
    path.unlink(missing_ok=True)  # it may be a hard link to another file
    figure.savefig(path, dpi=110)


def draw_run(metrics, path):
    logged = list(rows(metrics))
    partial, full = ([row for row in logged if row.get("full") is flag] for flag in (False, True))
    curves = [("training", "-", points(logged, "loss")), ("validation", "o-", points(partial, "val_loss"))]
    draw([*curves, ("full validation", "D", points(full, "val_loss"))], path)
