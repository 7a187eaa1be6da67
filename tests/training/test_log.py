"""What is drawn of a run, and what wandb gets."""

from pathlib import Path
from types import SimpleNamespace

import wandb
from matplotlib.figure import Figure

from configs.compose import compose
from tests.training.runs import read_lines
from training.log import start_wandb
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
    code, _, errors = start("wandb.mode=offline", "log.every=1", "eval.every=2", "name=logged")
    assert code == 0 and "wandb" not in errors
    folder = Path("runs/logged")
    assert sent == [(row["step"], row) for row in read_lines(folder / "metrics.jsonl")]
    assert list(folder.glob("wandb/offline-run-*/*.wandb"))


def test_a_resumed_run_keeps_its_id_at_wandb(tmp_path, monkeypatch):
    options = []
    run = SimpleNamespace(finish=int)
    monkeypatch.setattr("wandb.init", lambda **given: options.append(given) or run)
    for _ in range(2):
        start_wandb(tmp_path, compose(["wandb.mode=online"]))
    assert options[0]["id"] == options[1]["id"] and options[0]["resume"] == "allow"


def test_a_failing_service_costs_one_warning(start, monkeypatch):
    def init(**options):
        raise ConnectionError("refused\nand more")

    monkeypatch.setattr("wandb.init", init)
    code, _, errors = start("wandb.mode=online", "train.steps=2", "log.every=1")
    assert code == 0 and errors.count("warning: ") == 1
    assert "warning: no wandb (ConnectionError: refused)\n" in errors
