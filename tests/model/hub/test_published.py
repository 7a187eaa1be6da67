"""init_from with a folder in a Hugging Face format."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from configs.compose import compose
from data.corpus import load_data
from model.checkpoint import init_run
from tests.model.hub.hub_models import build_hf, save
from tests.training.runs import TEXT, train
from training.log import read_rows

OVERRIDES = [
    "init_from=hf",
    "data=text",
    "data.path=book.txt",
    "train.batch_size=4",
    "precision=fp32",
]


@pytest.fixture
def workdir(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("book.txt").write_text(TEXT)
    return tmp_path


def test_training_starts_at_the_loss_of_the_loaded_model(workdir):
    hf_model = build_hf("gpt2")
    save(hf_model, workdir / "hf")
    assert train(*OVERRIDES, "train.steps=2", "eval.every=1", "name=tuned") == 0
    model, tokenizer, *_ = init_run("hf")
    config = compose(["data=text", "data.path=book.txt", "train.batch_size=4"])
    config = replace(config, model=replace(config.model, context_length=model.context_length))
    total = n = 0
    for batch in load_data(config, tokenizer).validation.evaluation():
        with torch.no_grad():
            scores = hf_model(batch.inputs["tokens"]).logits.flatten(0, 1)
        total += F.cross_entropy(scores, batch.targets.flatten(), reduction="sum").item()
        n += (batch.targets != -100).sum().item()
    losses = [
        row["val_loss"]
        for row in read_rows(workdir / "runs/tuned/metrics.jsonl")
        if row.get("full") is False
    ]
    assert losses[0] == pytest.approx(total / n, rel=1e-5)
    assert losses[-1] < losses[0]
