"""A resumed run continues exactly where it stopped, with its own settings; only some may change."""

import os
import shutil
import signal
from functools import partial
from pathlib import Path

import pytest
import yaml

from model.hub.__main__ import import_run
from model.runs import RUNS, newest_run, step_name
from tests.model.hub import hub_models
from tests.parts import thin
from tests.training.runs import content, files, newest, rows
from training.log import Log

FULL = """
    model.dropout=0.1 train.micro_batch_size=2 schedule=constant schedule.warmup=2
    checkpoint.every=1 checkpoint.keep=9 log.every=1 sample.every=2 eval.every=2
"""
KINDS = [
    "model=gpt2 optimizer=adamw precision=fp16 ema.decay=0.9 data.document_mask=true data.split_on=line",
    "model=bert optimizer=adamw train.patience=2 eval.every=1",
    "model=bart data=synthetic data.size=200 eval.every=3",
    "data=mix data.sources={a:{kind:text,path:book.txt,weight:2},b:{kind:text,path:book.txt}}",
]


def stop_after(step, monkeypatch):
    """A signal arrives when a step has been logged; the run ends after the next one."""
    log = Log.step

    def step_and_signal(self, *values):
        log(self, *values)
        if self.state.step == step - 1:
            signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(Log, "step", step_and_signal)


@pytest.mark.parametrize("overrides", thin(KINDS, [KINDS[0], KINDS[2], KINDS[3]]))
def test_a_stopped_run_comes_to_the_same_bytes(start, monkeypatch, overrides):
    settings = f"{FULL} {overrides}".split()
    start(*settings, "name=full")
    with monkeypatch.context() as patch:
        stop_after(3, patch)
        output = start(*settings, "name=part", code=75).out
    assert len(rows("runs/part", "loss")) == 3
    assert "stopped; to resume: python train.py name=part resume=true\n" in output
    assert "runs/part, resuming from step 3\n" in start("name=part", "resume=true").out
    assert content("runs/part") == content("runs/full")


def test_from_an_older_checkpoint_and_beyond_the_end(start):
    start(*FULL.split(), "name=full")
    start(*FULL.split(), "train.steps=3", "name=part")
    damaged = Path("runs/part/checkpoints/step-00000003/model.safetensors")
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"x")
    with open("runs/part/metrics.jsonl", "a") as file:
        file.write('{"step": 5, "loss": 1.0}\nnonsense\n{"step": 6, "lo')
    output, errors = start("name=part", "resume=true", "train.steps=4")
    assert "resuming from step 2" in output
    assert f"warning: {damaged} is damaged: its checksum does not match; using" in errors
    assert "train.steps was 3 and is now 4\n" in output
    assert Path("runs/part/checkpoints/step-00000003.damaged").exists()
    assert content("runs/part") == content("runs/full")


def test_runs_that_are_new_finished_or_without_checkpoints(start):
    auto = ["name=mine", "resume=auto", "train.steps=1"]
    assert "runs/mine, starting at step 0" in start(*auto).out
    before = content("runs/mine")
    assert "runs/mine is finished; raise train.steps, another length" in start(*auto).out
    assert content("runs/mine") == before
    shutil.rmtree("runs/mine/checkpoints")
    assert "runs/mine, starting at step 0" in start("name=mine", "resume=true").out
    assert content("runs/mine") == before
    Path("book.txt").write_text("another text\n" * 500)
    errors = start(*auto, code=3).err
    assert "the text, or the order that this version gives it, has changed" in errors


@pytest.mark.parametrize("is_evaluated", [True, False])
def test_a_finished_run_keeps_its_record(start, is_evaluated):
    """Of settings that no step was taken with, nothing is written; a run that was killed in its last
    evaluation repeats it."""
    start("name=mine", "eval.every=2")
    whole = files("runs/mine")
    if not is_evaluated:
        path = Path("runs/mine/metrics.jsonl")
        path.write_text("".join(path.read_text().splitlines(True)[:-1]))
    output = start("name=mine", "resume=true", "optimizer.lr=0.1", "log.every=3").out
    assert "runs/mine is finished; raise train.steps" in output
    now = files("runs/mine")
    assert {path.name for path in now if now[path] != whole[path]} <= {"curve.png"}


@pytest.fixture
def resume(start, monkeypatch):
    """resume(*overrides) -> what is printed of the settings, which are only read"""
    monkeypatch.setattr("train.plan.report", lambda config: "model")
    start("name=mine", "train.steps=0", "optimizer=muon", "eval.every=null", "schedule.warmup=2")
    return partial(start, "name=mine", "resume=true", "dry_run=true")


def test_an_imported_run_is_not_resumed(start):
    hub_models.save(hub_models.build_hf("gpt2"), Path("hf"))
    Path("runs").mkdir()
    import_run("hf", Path("runs/mine"))
    errors = start("name=mine", "resume=true", code=4).err
    assert "runs/mine was imported and has not been trained; use init_from=runs/mine" in errors


FIXED = {
    "seed=1": "seed was 0 in this run and is now 1; it cannot change: remove it, or start",
    "optimizer=adamw": "optimizer was muon in this run and is now adamw; it cannot change",
    "attention=gqa": "attention was mha_qknorm in this run and is now gqa",
    "data=text data.path=x": "data.path was book.txt in this run and is now x",
    "eval.max_examples=9": "eval.max_examples was 4 in this run and is now 9",
    "init_from=x": "init_from was null in this run and is now x",
}
CHANGES = ["optimizer.lr=0.01", "train.epochs=2", "eval.every=7", "schedule=cosine"]
TOLD = """schedule was wsd and is now cosine
optimizer.lr was 0.02 and is now 0.01
schedule.kind was wsd and is now cosine
train.steps was 0 and is now null
train.epochs was null and is now 2
eval.every was null and is now 7
"""


def test_changes(resume):
    """What a run is may not change; the rest is told."""
    for overrides, sentence in FIXED.items():
        [error] = resume(*overrides.split(), code=2).err.splitlines()
        assert error.startswith(f"error: {sentence}")
    output = resume(*CHANGES).out
    assert not set(TOLD.splitlines()) - set(output.splitlines()), output
    assert resume("seed=0", "optimizer=muon", "model.context_length=32").out == "model\n"


def test_a_source_keeps_its_weight(start):
    sources = "data.sources={a:{kind:text,path:book.txt,weight:2},b:{kind:text,path:book.txt}}"
    start("name=mix", "data=mix", sources)
    sources = sources.replace(",weight:2", "")
    errors = start("name=mix", "data=mix", sources, "resume=true", code=2).err
    assert "data.sources.a.weight was 2 in this run and is now null; it cannot" in errors


def test_settings_that_an_older_run_lacks_take_the_default(resume):
    path = Path("runs/mine/config.yaml")
    config = yaml.safe_load(path.read_text())
    for group in ("metrics", "ema", "adapt", "deterministic"):
        config.pop(group)
    config["eval"]["every"] = 77
    config["code"]["model"] = "other"
    path.write_text(yaml.safe_dump(config))
    output, errors = resume("eval.every=250")
    for key, value in {"adapt.kind": "none", "metrics.every": 100}.items():
        assert f"{key} was added after this run was started, and is {value}\n" in output
    assert "eval.every was 77 and is now 250\n" in output
    assert errors == "warning: the code of model has changed since runs/mine was started\n"
    assert "ema.decay was null in this run and is now 0.9" in resume("ema.decay=0.9", code=2).err


def test_a_run_of_an_older_format_is_refused(start, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr("model.save.FORMAT", 2)
        start("name=older", "train.steps=1")
    errors = start("name=older", "resume=true", code=4).err
    assert "has format 2, and this version reads 3; continue the run with" in errors


def test_a_run_is_resumed_by_its_name(start):
    start("name=mine", "train.steps=1")
    shutil.copytree("runs/mine", "runs/sweep-2001/lr-0.01")
    sentences = {
        "": "resume= needs a name=...; the newest run is ",
        "name=sweep-2001/lr-0.02": "(did you mean runs/sweep-2001/lr-0.01?)",
        "name=mime": "no run runs/mime (did you mean runs/mine?); resume=auto would start it",
    }
    for name, sentence in sentences.items():
        assert sentence in start(*name.split(), "resume=true", code=2).err


def test_a_failed_start_removes_nothing_that_was_there(start):
    Path("runs/sweep-1/0").mkdir(parents=True)
    Path("runs/sweep-1/0/config.yaml").write_text("a: 1")
    start("name=sweep-1", "resume=auto", "data.path=missing.txt", code=3)
    assert Path("runs/sweep-1/0/config.yaml").read_text() == "a: 1"


def test_early_stopping_is_not_undone_by_a_resume(start):
    """The run has stopped itself: resumed, it does not take another step."""
    worse = ["optimizer.lr=50.0", "train.grad_clip=0"]
    start("name=mine", *worse, "train.steps=40", "eval.every=1", "train.patience=2")
    before = newest("runs/mine")
    assert before.name != "step-00000040"
    start("name=mine", "resume=true")
    assert newest("runs/mine") == before


def test_a_run_is_as_new_as_its_newest_checkpoint(room):
    for time, (name, step) in enumerate([("resumed", 1), ("other", 1), ("resumed", 2)]):
        place = RUNS / name / "checkpoints" / step_name(step)
        place.mkdir(parents=True)
        os.utime(place, (time, time))
    assert newest_run() == RUNS / "resumed"
