"""What is drawn of a run, and what wandb gets."""

from pathlib import Path

import wandb
from matplotlib.figure import Figure

from tests.training.runs import read_lines
from training.plot import draw_run


def test_the_curve_of_a_run(monkeypatch):
    """The full validation is not joined to the others."""
    rows = [{"tokens": n, "loss": 6.0 / n, "lr": 0.1 * n} for n in (1, 2, 3)]
    rows += [{"tokens": n, "val_loss": 7.0 - n, "full": n == 3} for n in (1, 2, 3)]
    figures = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, *_, **options: figures.append(figure))
    draw_run(rows, Path("curve.png"))
    [axes, right] = figures[0].axes
    lines = {line.get_label(): line.get_xydata().tolist() for line in axes.lines}
    assert lines == {
        "training": [[1, 6], [2, 3], [3, 2]],
        "validation": [[1, 6], [2, 5]],
        "full validation": [[3, 4]],
    }
    assert right.lines[0].get_ydata().tolist() == [row["lr"] for row in rows[:3]]


def test_wandb_gets_every_row_offline(start, monkeypatch):
    sent = []
    monkeypatch.setattr(wandb.Run, "log", lambda run, row, step: sent.append((step, row)))
    errors = start("wandb.mode=offline", "log.every=1", "eval.every=2", "name=logged").err
    assert "wandb" not in errors
    folder = Path("runs/logged")
    assert sent == [(row["step"], row) for row in read_lines(folder / "metrics.jsonl")]
    assert list(folder.glob("wandb/offline-run-*/*.wandb"))


def test_a_failing_service_costs_one_warning(start, monkeypatch):
    """A resumed run would have the same id there."""
    options = []

    def init(**given):
        options.append(given)
        raise ConnectionError("refused\nand more")

    monkeypatch.setattr("wandb.init", init)
    for more in (["wandb.mode=online", "train.steps=0"], ["resume=true"]):
        assert start("name=logged", *more).err == "warning: no wandb (ConnectionError: refused)\n"
    assert options[0]["id"] == options[1]["id"] and options[1]["resume"] == "allow"
