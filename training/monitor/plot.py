"""Curve: losses against tokens, of one run or of several side by side."""

from training.monitor.metrics import rows


def points(rows, name):
    return [(row["tokens"], row[name]) for row in rows if name in row and "tokens" in row]


def draw(curves, picture):
    """curves: (label, style, [(tokens, loss)]) each."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.5))
    axes = figure.subplots(gridspec_kw={"left": 0.09, "right": 0.97, "bottom": 0.12, "top": 0.96})
    for label, style, line in curves:
        if line:
            axes.plot(*zip(*line, strict=True), style, label=label.replace("$", r"\$"), markersize=3)
    axes.set(xlabel="tokens", ylabel="loss, nats a token")
    axes.grid(alpha=0.3)
    if axes.lines:
        axes.legend()
    figure.savefig(picture, dpi=110)


def draw_run(metrics, picture):
    found = rows(metrics)
    names = (("training", "-", "loss"), ("validation", "o-", "val_loss"))
    draw([(label, style, points(found, name)) for label, style, name in names], picture)
