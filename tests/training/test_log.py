"""What wandb gets of a run, and what is printed."""

from pathlib import Path

import wandb

from tests.training.runs import read_lines


def test_wandb_gets_every_row_offline(start, monkeypatch):
    sent = []
    monkeypatch.setattr(wandb.Run, "log", lambda run, row, step: sent.append((step, row)))
    errors = start("wandb.mode=offline", "log.every=1", "eval.every=2", "name=logged").err
    assert "wandb" not in errors
    assert sent == [(row["step"], row) for row in read_lines("runs/logged/metrics.jsonl")]
    assert list(Path("runs/logged").glob("wandb/offline-run-*/*.wandb"))


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
