"""curve.png: losses and learning rate against tokens."""

import json
import math

from matplotlib.figure import Figure

from training.monitor.plot import draw_run


def test_the_curve_of_a_run(tmp_path, monkeypatch):
    """The full validation is not joined to the others, and the best one is marked; NaN is never the best."""
    losses = {1: math.nan, 2: 3.0, 3: 5.0, 4: 4.0}
    logged = [{"tokens": n * 10**6, "loss": 6.0 / n, "lr": 0.1 * n} for n in losses]
    logged += [{"tokens": n * 10**6, "val_loss": loss, "full": False} for n, loss in losses.items()]
    logged += [{"tokens": 4 * 10**6, "val_loss": 3.5, "full": True}]
    metrics = tmp_path / "metrics.jsonl"
    metrics.write_text("".join(json.dumps({"step": 1, **row}) + "\n" for row in logged))
    figures, save = [], Figure.savefig
    monkeypatch.setattr(
        Figure,
        "savefig",
        lambda self, *a, **options: [figures.append(self), save(self, *a, **options)],
    )
    draw_run(metrics, tmp_path / "curve.png")
    assert (tmp_path / "curve.png").stat().st_size > 10_000
    [axes, right] = figures[0].axes
    lines = {line.get_label(): line for line in axes.lines}
    assert [*lines] == ["training", "validation", "best validation", "full validation"]
    assert lines["validation"].get_xydata()[1:].tolist() == [[2e6, 3], [3e6, 5], [4e6, 4]]
    assert lines["best validation"].get_xydata().tolist() == [[2e6, 3]]
    assert lines["full validation"].get_xydata().tolist() == [[4e6, 3.5]]
    assert right.lines[0].get_ydata().tolist() == [row["lr"] for row in logged[:4]]
    assert right.get_ylabel().startswith("learning rate") and right.get_ylim()[0] == 0
    ticks = [label.get_text() for label in axes.get_xticklabels()]
    assert "2M" in ticks and not axes.xaxis.get_offset_text().get_text()
