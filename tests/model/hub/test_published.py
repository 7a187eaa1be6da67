"""init_from with a folder in a Hugging Face format."""

import json
from pathlib import Path

import pytest

from tests.model.hub.hub_models import build_hf, save
from tests.training.runs import TEXT, train
from training.evaluate import main
from training.log import read_rows

DATA = ["data=text", "data.path=book.txt", "precision=fp32"]


def test_training_starts_at_the_loss_of_the_loaded_model(tmp_path, monkeypatch, capsys):
    """That of `python -m training.evaluate`, which another test compares with transformers."""
    monkeypatch.chdir(tmp_path)
    Path("book.txt").write_text(TEXT)
    save(build_hf("gpt2"), tmp_path / "hf")
    steps = ["train.batch_size=4", "train.steps=2", "eval.every=1"]
    assert train("init_from=hf", "name=tuned", *DATA, *steps) == 0
    rows = read_rows(Path("runs/tuned/metrics.jsonl"))
    losses = [row["val_loss"] for row in rows if "val_loss" in row]
    capsys.readouterr()
    main(["--run", "hf", *DATA, "--json"])
    expected = json.loads(capsys.readouterr().out)["val_loss"]
    assert losses[0] == pytest.approx(expected, rel=1e-5)
    assert losses[-1] < losses[0]
