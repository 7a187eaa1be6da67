"""A run goes on exactly where it stopped, with the settings it has; those that may change say so."""

import json
import re
import shutil
from pathlib import Path

import pytest

from configs.compose import compose
from tests.faults.harness import equal
from tests.training.runs import rows
from training.resume import class_of, flat, resolve_config

EXACT = [
    ["model=modern", "precision=bf16"],
    ["model=gpt2", "optimizer=adamw", "precision=fp16"],
    ["model=t5", "eval.every=3"],
    ["model=bert", "optimizer=adamw", "train.patience=2", "eval.every=1"],
    ["model=bart", "data=synthetic", "data.size=200"],
]
KEPT = [
    "checkpoint.every=1",
    "checkpoint.keep=9",
    "log.every=1",
    "sample.every=2",
    "eval.every=2",
    "name=whole",
]


def stopped_after(step, whole, name="part"):
    """A copy of a run as it was at a step, but for rows that it wrote later."""
    part = whole.with_name(name)
    shutil.rmtree(part, ignore_errors=True)
    shutil.copytree(whole, part)
    for path in (part / "checkpoints").glob("step-*"):
        if int(path.name[-8:]) > step:
            shutil.rmtree(path)
    (part / "checkpoints/latest").write_text(f"step-{step:08}\n")
    config = part / "config.yaml"
    config.write_text(config.read_text().replace(f"name: {whole.name}", f"name: {name}"))
    return part


@pytest.mark.parametrize("words", EXACT, ids=lambda words: words[0])
def test_from_every_step_to_the_same_bytes(run, start, words):
    whole = run(*KEPT, "model.dropout=0.1", "train.micro_batch_size=2", *words)
    for step in (1, 2, 3, 4):
        part = stopped_after(step, whole)
        code, said, wrong = start.plainly("name=part", "resume=true")
        begins = f"goes on from step {step}" if step < 4 else "is finished, all 4 steps are done"
        assert code == 0 and f"runs/part {begins}" in said, wrong
        config = part / "config.yaml"
        config.write_text(config.read_text().replace("name: part", "name: whole"))
        equal(part, whole)
    state = json.loads((whole / "checkpoints/step-00000004/state.json").read_text())
    assert bool(state["scaler"]) == ("precision=fp16" in words)


def test_steps_may_grow(run, start):
    constant = [*KEPT, "schedule=constant", "model.dropout=0.1"]
    whole = run(*constant)
    assert run(*constant, "name=grown", "train.steps=2")
    assert start.plainly("name=grown", "resume=true", "train.steps=4")[0] == 0
    grown = Path("runs/grown")
    config = grown / "config.yaml"
    config.write_text(config.read_text().replace("name: grown", "name: whole"))
    equal(grown, whole)
    code, _, said = start.plainly("name=grown", "resume=true", "train.steps=3")
    assert (
        code == 2
        and "the run has done 4 steps, and by train.steps, tokens" in said
        and "end at 3; give" in said
    )


def test_rows_beyond_the_step_are_cut(run, start):
    whole = run(*KEPT)
    part = stopped_after(2, whole)
    with open(part / "metrics.jsonl", "a") as file:
        file.write('{"step": 5, "loss": 1.0}\nnonsense\n{"step": 6, "lo')
    assert start.plainly("name=part", "resume=true")[0] == 0
    assert [step for step, _ in rows(part, "step", "loss")] == [1, 2, 3, 4]
    assert [step for step, _ in rows(part, "step", "full")] == [0, 2, 4, 4]


def test_every_setting_has_a_class():
    for words in ([], ["model=bart", "data=pairs", "data.path=x", "data.source=a", "data.target=b"]):
        for key in flat(compose(words)):
            assert class_of(key) is not None, f"{key} has no class"
    assert class_of("train.lr") is None and class_of("new") is None


CHANGES = [
    ("seed=1", "seed was 0 in this run and is now 1"),
    ("model.d_model=32", "model.d_model was 64 in this run and is now 32"),
    ("attention=gqa", "model.attention"),
    ("model=llama", "model.attention"),
    ("size=small", "model.d_model was 64|model.context_length"),
    ("tokenizer=char", "tokenizer.kind was byte in this run and is now char"),
    ("optimizer=adamw", "optimizer.kind was muon in this run and is now adamw; a run goes on with what"),
    ("train.batch_size=2", "train.batch_size was 4 in this run and is now 2"),
    ("init_from=runs/other", "init_from was null"),
    ("optimizer.lr=0.01", r"optimizer.lr was 0.02 .* say resume_allow=\[optimizer.lr\]"),
    ("schedule=cosine", r"schedule.decay_ratio was .* resume_allow=\[schedule\] if that is meant"),
    ("data=python", r"data.split_on was .* resume_allow=\[data\] if that is meant"),
    ("experiment=reverse", "a run goes on with what it began with"),
    ("resume_allow=[seed]", "resume_allow names seed, which stays as the run began with it; leave it out"),
    ("resume_allow=[schedule,model]", "resume_allow names model, which stays as the run began with it"),
    ("resume_allow=[log.every]", "resume_allow names log.every, which may change without; leave it out"),
    ("train.grad_clip=2.0", "train.grad_clip was 1.0"),
    ("train.micro_batch_size=2", "train.micro_batch_size was auto"),
    ("precision=bf16", "precision was fp32"),
    ("compile=false", "compile was auto"),
    ("data.val_fraction=0.2", "data.val_fraction was 0.05"),
    ("eval.every=3", None),
    ("eval.max_examples=2", None),
    ("log.every=1", None),
    ("sample.every=null", None),
    ("checkpoint.keep=5", None),
    ("checkpoint.every=2", None),
    ("train.patience=7", None),
    ("wandb.mode=offline", None),
    ("device=cpu", None),
    ("data=text", None),
    ("tokenizer=byte", None),
    ("objective=auto", None),
    ("train.stepz=3", r"there is no train.stepz \(did you mean train.steps\?\)"),
    ("+train.steps=3", "adds or takes out"),
    ("~train.steps", "adds or takes out"),
    ("train.steps=1,2", "lists several values"),
    ("log.every=${seed}", "a value is plain data and refers to nothing else"),
    ("resume_allow=[optimizer.rat]", r"there is no such setting \(did you mean optimizer.lr\?\)"),
]


def test_settings_on_the_way(run, start):
    run("name=mine")

    def once(*words):
        return resolve_config(["name=mine", "resume=true", *words], Path("runs"))

    for word, sentence in CHANGES:
        if sentence is None:
            once(word)
            continue
        with pytest.raises(ValueError) as refused:
            once(word)
        assert re.search(sentence, str(refused.value)), f"{word}: {refused.value}"
    assert once("optimizer.lr=0.01", "resume_allow=[optimizer.lr]").optimizer["rate"] == 0.01
    assert once("optimizer.lr=0.01", "resume_allow=[optimizer]").optimizer["rate"] == 0.01
    code, _, said = start.plainly("name=mine", "resume=true", "seed=1", "resume_allow=[seed]")
    assert code == 2 and said.count("error: ") == 1 and "Traceback" not in said


def test_what_cannot_go_on_is_said(start, run):
    code, _, said = start.plainly("resume=true")
    assert code == 2 and "resume=true needs the name of a run, name=...; there is none in runs yet" in said
    folder = run("name=mine")
    assert "the newest is name=mine" in start.plainly("resume=true")[2]
    code, said, _ = start.plainly("name=mine", "resume=true")
    assert code == 0 and "runs/mine is finished, all 4 steps are done; more train.steps" in said
    code, _, said = start.plainly("name=mine")
    assert code == 2 and "runs/mine exists already; go on with it by resume=true, or choose another" in said
    code, said, _ = start("name=new", "resume=true")
    assert code == 0 and "there is no run runs/new yet; it begins at step 0" in said
    code, _, said = start("resume_allow=[seed]")
    assert code == 2 and "resume_allow says what may change where a run goes on, by name=... resume" in said
    Path("book.txt").write_text("another text\n" * 500)
    code, _, said = start.plainly("name=mine", "resume=true")
    assert code == 3 and "the text is no longer what runs/mine has learned from" in said
    assert start.plainly("name=mine", "resume=true", "resume_allow=[data]")[0] == 0
    shutil.rmtree(folder / "checkpoints")
    code, said, _ = start.plainly("name=mine", "resume=true")
    assert code == 0 and "runs/mine has no checkpoint yet; it begins at step 0" in said


@pytest.mark.parametrize("every", ["null", "2"])
def test_the_best_stays_the_best(run, start, every):
    """What was judged after it was saved is judged again: a longer run that gets worse keeps it."""
    folder = run("name=mine", "train.steps=3", f"eval.every={every}", "checkpoint.keep=1")
    assert (folder / "checkpoints/best").read_text() == "step-00000003\n"
    worse = ["train.steps=6", "optimizer.lr=9", "optimizer.adamw_lr_ratio=9", "resume_allow=[optimizer]"]
    code, _, said = start.plainly("name=mine", "resume=true", *worse)
    losses = {step: loss for step, loss, full in rows(folder, "step", "val_loss", "full") if step}
    assert code == 0 and min(losses, key=losses.get) == 3 < max(losses), said
    assert (folder / "checkpoints/best").read_text() == "step-00000003\n"
    assert (folder / "checkpoints/step-00000003").is_dir()
