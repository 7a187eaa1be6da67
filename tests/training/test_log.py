"""What is drawn of a run, and what wandb gets."""

import math
from pathlib import Path
from types import SimpleNamespace

import wandb
from matplotlib.figure import Figure

from configs.compose import compose
from tests.training.runs import read_lines
from training.log import start_wandb
from training.plot import draw_run


def test_the_curve_of_a_run(tmp_path, monkeypatch):
    """The full validation is not joined to the others, and the best one is marked; NaN is never
    the best."""
    losses = {1: math.nan, 2: 3.0, 3: 5.0, 4: 4.0}
    million = 10**6
    logged = [{"tokens": n * million, "loss": 6.0 / n, "lr": 0.1 * n} for n in losses]
    for n, loss in losses.items():
        logged.append({"tokens": n * million, "val_loss": loss, "full": False})
    logged.append({"tokens": 4 * million, "val_loss": 3.5, "full": True})
    figures = []
    save = Figure.savefig

    def remember(figure, *args, **options):
        figures.append(figure)
        save(figure, *args, **options)

    monkeypatch.setattr(Figure, "savefig", remember)
    draw_run(logged, tmp_path / "curve.png")
    assert (tmp_path / "curve.png").stat().st_size > 10_000
    [axes, right] = figures[0].axes
    lines = {line.get_label(): line.get_xydata().tolist() for line in axes.lines}
    assert [*lines] == ["training", "validation", "full validation"]
    assert lines["validation"][1:] == [[2e6, 3], [3e6, 5], [4e6, 4]]
    assert lines["full validation"] == [[4e6, 3.5]]
    assert right.lines[0].get_ydata().tolist() == [row["lr"] for row in logged[:4]]


def test_wandb_gets_every_row_offline(start, monkeypatch):
    sent = []
    init = wandb.init

    def recorded(**options):
        run = init(**options)
        log = run.log

        def remember(row, step):
            sent.append({"step": step, **row})
            log(row, step)

        monkeypatch.setattr(run, "log", remember)
        return run

    monkeypatch.setattr("wandb.init", recorded)
    observed = ["wandb.mode=offline", "log.every=1", "eval.every=2"]
    code, _, errors = start(*observed, "name=logged")
    assert code == 0 and "wandb" not in errors
    folder = Path("runs/logged")
    assert sent == read_lines(folder / "metrics.jsonl")
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
