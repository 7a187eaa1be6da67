"""init_from with a folder in a Hugging Face format."""

import json
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from tokenizers.normalizers import Lowercase

from configs.compose import compose
from data.corpus import load
from model.checkpoint.load import load_run
from model.hub.convert import init_config, init_model
from tests.model.hub.hub_models import build_hf, byte_pairs, save
from tests.training.runs import TEXT, rows
from train import main
from training.sweep import launch

OVERRIDES = [
    "init_from=hf",
    "data=text",
    "data.path=book.txt",
    "train.batch_size=4",
    "precision=fp32",
]


def compose_with_init(overrides):
    return compose(overrides, init_config)


@pytest.fixture
def workdir(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("book.txt").write_text(TEXT)
    return tmp_path


def test_training_starts_at_the_loss_of_the_loaded_model(workdir):
    hf_model = build_hf("gpt2")
    save(hf_model, workdir / "hf")
    assert (
        launch(main, compose_with_init, [*OVERRIDES, "train.steps=2", "eval.every=1", "name=tuned"])
        == 0
    )
    total = n = 0
    for batch in load(compose_with_init(OVERRIDES), init_model("hf")[1]).validation.evaluation():
        with torch.no_grad():
            scores = hf_model(batch.inputs["tokens"]).logits.flatten(0, 1)
        total += F.cross_entropy(scores, batch.targets.flatten(), reduction="sum").item()
        n += (batch.targets != -100).sum().item()
    first, *_, last = rows(workdir / "runs/tuned", "val_loss", "val_tokens")
    assert first[0] == pytest.approx(total / n, rel=1e-5) and first[1] == n
    assert last[0] < first[0]


def test_model_and_tokenizer_are_loaded_together(workdir):
    save(build_hf("bert"), workdir / "hf")
    config = compose_with_init(OVERRIDES)
    assert config.objective["kind"] == "masked" and config.tokenizer == {"kind": "hub"}
    assert launch(main, compose_with_init, [*OVERRIDES, "model=gpt2"]) == 2
    (workdir / "hf/config.json").unlink()
    assert launch(main, compose_with_init, OVERRIDES) == 4
    assert not (workdir / "runs").exists()


def test_training_with_another_tokenizer(workdir):
    """It is run by the tokenizers library, in training and after loading the run."""
    save(build_hf("bert"), workdir / "hf")
    tokenizer = byte_pairs()
    tokenizer.normalizer = Lowercase()
    tokenizer.add_special_tokens(["<mask>"])
    tokenizer.save("hf/tokenizer.json")
    Path("hf/tokenizer_config.json").write_text('{"mask_token": "<mask>"}')
    assert (
        launch(
            main, compose_with_init, [*OVERRIDES, "train.steps=2", "sample.every=1", "name=tuned"]
        )
        == 0
    )
    run = load_run(workdir / "runs/tuned")
    assert run.tokenizer.kind == "hub" and run.tokenizer.specials["mask"] == tokenizer.token_to_id(
        "<mask>"
    )
    samples = [
        json.loads(line) for line in Path("runs/tuned/samples.jsonl").read_text().splitlines()
    ]
    assert "<mask>" in samples[0]["masked"]
