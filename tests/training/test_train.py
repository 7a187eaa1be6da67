"""Runs from command line to folder: every architecture, reproducible bytes, observers that change nothing."""

import json
import re
import subprocess
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from configs.compose import compose
from data.corpus import load
from model.checkpoint.files import FILES
from model.hub.convert import init_config
from tests.parts import ROOT, names
from tests.training.runs import USUAL, rows, start_processes, weights, with_usual
from train import main
from training.run import Run
from training.sweep import launch

ARCHITECTURES = [
    ["model=modern"],
    ["model=modern_encoder"],
    ["model=modern_seq2seq"],
    ["model=gpt2", "optimizer=adamw", "schedule=cosine"],
    ["model=deepseek", "attention=mla"],
    ["model=bert"],
    ["model=t5"],
    ["model=bart", "data=synthetic", "data.size=200"],
    ["model=llama", "data=synthetic", "data.size=200"],
    ["model=vaswani", "data=synthetic", "data.size=200", "schedule=noam"],
]


@pytest.mark.parametrize("overrides", ARCHITECTURES, ids=lambda overrides: overrides[0])
def test_every_architecture_trains_by_the_same_command(run, overrides):
    folder, model = run(*overrides, "log.every=1", "sample.every=2", "eval.every=2"), overrides[0]
    assert [step for step, _ in rows(folder, "step", "loss")] == [1, 2, 3, 4]
    evaluations = rows(folder, "step", "val_loss", "full")
    assert [(step, full) for step, _, full in evaluations] == [
        (0, False),
        (2, False),
        (4, False),
        (4, True),
    ]
    assert all(0 < loss < 12 for _, loss, _ in evaluations)
    assert bool(rows(folder, "val_bpb")) == (
        model in ("model=modern", "model=gpt2", "model=deepseek")
    )
    assert bool(rows(folder, "val_exact_match")) == ("data=synthetic" in overrides)
    assert bool(rows(folder, "val_accuracy")) == (model in ("model=modern_encoder", "model=bert"))
    encoder_decoder = model in ("model=modern_seq2seq", "model=t5", "model=bart", "model=vaswani")
    assert len(rows(folder, "val_loss_shuffled_source")) == encoder_decoder
    samples = [json.loads(line) for line in (folder / "samples.jsonl").read_text().splitlines()]
    assert [sample["step"] for sample in samples] == [2, 4] and all(
        len(sample) >= 3 for sample in samples
    )


def test_one_validation_pair_has_no_other_source(run):
    """The loss with shuffled sources is left out where no batch has two rows."""
    folder = run("model=t5", "data=synthetic", "data.size=5", "data.val_fraction=0.01")
    assert rows(folder, "val_loss", "full") and not rows(folder, "val_loss_shuffled_source")


def test_a_line_per_step_and_per_evaluation(start):
    code, output, _ = start("log.every=1", "eval.every=2", "name=lines")
    assert code == 0
    folder = Path("runs/lines")
    for step, loss, lr, norm in rows(folder, "step", "loss", "lr", "grad_norm"):
        line = (
            rf"step +{step}  loss +{loss:.3f}  lr {lr:.1e}  grad norm {norm:.2f} +[\d.]+k tok/s  "
        )
        line += r"epoch \d\.\d\d  elapsed \d:\d\d  ETA \d:\d\d\n"
        assert re.search(line, output), output
    for step, loss, bpb, full in rows(folder, "step", "val_loss", "val_bpb", "full"):
        line = f"step {step:>6}  val loss {loss:.3f}, {bpb:.3f} bits/byte{' (full)' * full}\n"
        assert output.count(line) == (full or step < 4), "at the end the full evaluation alone"
    assert "xz -9 primed with the training text" in output
    assert "\nsaved to runs/lines, with curve.png; next:\n" in output
    assert re.search(r"\n\d checkpoints; training blocked for 0\.\d\d s \([\d.]+%\)\n", output)


def test_a_checkpoint_lists_its_files(run):
    folder = run("checkpoint.every=1", "checkpoint.keep=2") / "checkpoints"
    assert (folder / "latest").read_text() == "step-00000004\n"
    steps = sorted(path.name for path in folder.iterdir() if path.is_dir())
    assert steps == ["step-00000003", "step-00000004"]
    assert set(json.loads((folder / "step-00000004/manifest.json").read_text())) == FILES
    keys = {
        name.rpartition(".")[2]
        for name in load_file(folder / "step-00000004/optimizer.safetensors")
    }
    assert keys == {"momentum_buffer", "step", "exp_avg", "exp_avg_sq"}


OBSERVERS = [
    ["eval.every=1"],
    ["eval.every=3", "eval.max_examples=1"],
    ["eval.every=null"],
    ["log.every=1"],
    ["log.every=100"],
    ["sample.every=1"],
    ["sample.every=null"],
    ["checkpoint.every=1", "checkpoint.keep=1"],
    ["checkpoint.every=null"],
    ["train.patience=9", "eval.every=1"],
    ["wandb.mode=offline", "log.every=1", "sample.every=1"],
    ["debug=true", "name=other"],
]


@pytest.fixture(scope="module")
def reference():
    return {}


@pytest.mark.parametrize("observer", OBSERVERS, ids=lambda overrides: overrides[0])
def test_observers_change_no_weight(run, reference, observer):
    usual = ["model.dropout=0.1", "train.micro_batch_size=2", "precision=bf16"]
    if not reference:
        reference["weights"] = weights(run(*usual))
        assert weights(run(*usual, "seed=1")) != reference["weights"]
    assert weights(run(*usual, *observer)) == reference["weights"]


@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_processes_split_a_run(run, parallel):
    overrides = ["optimizer=adamw", "log.every=1", "eval.max_examples=100"]
    alone, two = run(*overrides, "name=one"), Path("runs/two")
    assert start_processes(2, with_usual([*overrides, "name=two", f"parallel={parallel}"])) == [
        0,
        0,
    ]
    for fields in (("step", "loss"), ("step", "grad_norm"), ("step", "val_loss", "val_tokens")):
        for one, other in zip(rows(alone, *fields), rows(two, *fields), strict=True):
            assert one == pytest.approx(other, rel=1e-5)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["model.init=none"], "model.init is 'none'; choose one of"),
        (["--steps=3"], "--steps"),
        (["-m", "name=x", "seed=1,2"], "name=x"),
        (["-m", "model=gpt2,nope"], "nope"),
    ],
)
def test_a_run_that_never_started_leaves_nothing_behind(start, overrides, message):
    code, _, stderr = start(*overrides)
    errors = [line for line in stderr.splitlines() if line.startswith("error: ")]
    assert code == 2 and len(errors) == 1 and message in errors[0] and "Traceback" not in stderr
    assert not list(Path("runs").glob("*"))


def test_a_run_reports_its_environment_and_what_it_did_not_learn(start):
    code, output, _ = start("name=short", "train.steps=1")
    assert code == 0
    assert re.search(
        r"warning: no better than the unigram baseline \(loss \d\.\d\d\); train longer", output
    )
    git = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True)
    environment = Path("runs/short/environment.txt").read_text()
    assert f"torch {torch.__version__}" in environment and git.stdout.strip() in environment
    code, output, _ = start("train.steps=40", "optimizer=adamw", "optimizer.lr=0.01")
    assert code == 0 and "warning" not in output
    code, output, _ = start("train.steps=1", "model=bert")
    assert re.search(
        r"warning: hardly better than the unigram .*; model=modern_encoder learns", output
    )


def test_debug_shows_the_traceback(start):
    code, _, errors = start("name=a/b", "debug=true")
    assert (
        code == 2 and "Traceback" in errors and errors.splitlines()[-1].startswith("error: name is")
    )


@pytest.mark.parametrize("batch_size", [4, 70])
def test_a_nan_is_reported_with_step_and_examples(start, batch_size):
    """All of them in a batch of the usual size; the last good checkpoint stays."""
    overrides = ["optimizer=adamw", "optimizer.lr=1e30", "train.grad_clip=0", "checkpoint.every=1"]
    overrides += ["optimizer.weight_decay=0"]  # which alone would make the weights infinite
    overrides += [f"train.batch_size={batch_size}", "log.every=1", "name=nan"]
    code, _, errors = start(*overrides)
    pattern = r"error: step (\d+): the (?:loss|gradient) is not finite .* training sequences \[(.*)\]; the w"
    match = re.search(pattern, errors)
    assert code == 5 and match, errors
    step = int(match[1]) - 1
    ids = load(compose(with_usual(overrides))).train.example_ids(step).tolist()
    shown = ids if batch_size == 4 else [*ids[:3], "...", *ids[-3:]]
    assert re.split(", +", match[2].strip()) == list(map(str, shown))
    latest = Path("runs/nan/checkpoints/latest").read_text().strip()
    saved = load_file(f"runs/nan/checkpoints/{latest}/model.safetensors")
    assert latest == f"step-{step:08}" and all(tensor.isfinite().all() for tensor in saved.values())


def test_a_folder_belongs_to_one_run(run, start):
    assert run("name=mine").name == "mine"
    code, _, errors = start("name=mine")
    assert code == 2 and "runs/mine already exists; add resume=true to continue it" in errors
    assert len({run().name, run().name, run().name}) == 3, "even in the same second"


# the learning rate soon becomes far too high
WORSE = ["eval.every=2", "optimizer=adamw", "optimizer.lr=1", "schedule=constant", "schedule.warmup=0.9",
         "train.steps=40"]  # fmt: skip


def test_the_best_checkpoint_is_kept(run):
    folder = run(*WORSE, "checkpoint.keep=1", "checkpoint.every=null")
    evaluations = rows(folder, "step", "val_loss", "full")
    losses = {step: loss for step, loss, full in evaluations if step and not full}
    best, latest = (
        (folder / "checkpoints" / name).read_text().strip() for name in ("best", "latest")
    )
    assert best == f"step-{min(losses, key=losses.get):08}" != latest == "step-00000040"
    kept = {path.name for path in (folder / "checkpoints").iterdir() if path.is_dir()}
    assert kept == {best, latest}


def test_patience_stops_a_run_early(start):
    code, output, _ = start(*WORSE, "train.patience=3", "name=early")
    folder = Path("runs/early")
    losses = [loss for _, loss, full in rows(folder, "step", "val_loss", "full") if not full]
    best = losses.index(min(losses))
    stopped = rows(folder, "step", "full")[-1][0]
    assert code == 0 and stopped == 2 * (best + 3) < 40
    assert (folder / "checkpoints/latest").read_text() == f"step-{stopped:08}\n"
    assert f"stopped early at step {stopped} of 40: no improvement in 3 evaluations\n" in output


def test_a_run_ends_after_its_tokens(run):
    linear = ["schedule=linear", "schedule.warmup=0"]
    folder = run("train.steps=null", "train.tokens=300", "log.every=1", *linear)
    assert [step for step, _ in rows(folder, "step", "loss")] == [1, 2, 3], "128 tokens per step"
    lrs = [lr for [lr] in rows(folder, "lr")]
    assert lrs == pytest.approx([0.02, 0.02 * 2 / 3, 0.02 / 3]), "the schedule fits the length"


def test_a_run_ends_after_its_epochs(start):
    overrides = ["train.steps=null", "train.epochs=1.5"]
    config = compose(with_usual(overrides))
    steps = -(-3 * load(config).train.n // (2 * config.train.batch_size))
    assert f"training    {steps} steps of 4 sequences" in start("dry_run=true", *overrides)[1]
    assert "training    3 steps" in start("dry_run=true", "train.steps=3", "train.epochs=1.5")[1]


def test_minutes_become_steps(start):
    code, output, _ = start("dry_run=true", "train.steps=null", "train.minutes=1")
    patterns = (r"training +([\d,]+) steps", r", ([\d,]+) ms")
    steps, ms = (int(re.search(pattern, output)[1].replace(",", "")) for pattern in patterns)
    assert code == 0 and steps * ms == pytest.approx(60_000, rel=0.6), output
    assert (
        "training    3 steps of 4 " in start("dry_run=true", "train.steps=3", "train.minutes=1")[1]
    )


def test_minutes_are_a_deadline_too(start, monkeypatch):
    """A run on a machine that has turned slow ends like one that is done; time before a resume counts."""
    monkeypatch.setattr(Run, "elapsed", lambda self: 60_001.0 if self.state.step >= 2 else 1.0)
    code, output, _ = start(
        "train.steps=40", "train.minutes=1000", "name=slow", "checkpoint.every=3"
    )
    assert code == 0 and "reached train.minutes=1000 at step 3 of 40\n" in output
    assert "stopped early" not in output
    folder = Path("runs/slow")
    assert (folder / "checkpoints/latest").read_text() == "step-00000003\n"
    assert rows(folder, "step", "full") == [(0, False), (3, False), (3, True)]
    code, output, _ = start.plainly("name=slow", "resume=true")
    assert code == 0 and rows(folder, "step", "full")[-1] == (3, True)
    assert "all 3 steps" in output and len(rows(folder, "loss")) == 0


def test_seconds_continue_after_a_resume(start, run):
    folder = run("name=mine", "log.every=1", "checkpoint.every=2")
    metrics = folder / "metrics.jsonl"
    logged = [json.loads(line) for line in metrics.read_text().splitlines()]
    metrics.write_text("".join(json.dumps(row | {"seconds": 1000.0}) + "\n" for row in logged))
    assert start.plainly("name=mine", "resume=true", "train.steps=6")[0] == 0
    assert all(seconds > 1000 for step, seconds in rows(folder, "step", "seconds") if step > 4)


BESIDE_INIT = [o for o in USUAL if not o.startswith(("size", "model", "tokenizer", "train.steps"))]


def test_zero_steps_only_evaluate(run):
    trained = run("name=base", "model=gpt2")
    overrides = ["init_from=runs/base", *BESIDE_INIT, "train.steps=0", "name=evaluated"]
    assert launch(main, compose, overrides) == 0
    folder = trained.with_name("evaluated")
    assert rows(folder, "val_loss", "full") == rows(trained, "val_loss", "full")[-1:]
    assert not (folder / "checkpoints").exists()


def test_init_from_another_run(run):
    run("name=base", "model=bert")
    overrides = ["init_from=runs/base", *BESIDE_INIT, "train.steps=2"]
    assert launch(main, compose, [*overrides, "name=tuned"]) == 0
    first, last = rows(Path("runs/tuned"), "val_loss")[0], rows(Path("runs/base"), "val_loss")[-2]
    assert first == last, "it starts where the other ended"
    assert compose(overrides, init_config).objective["kind"] == "masked", (
        "the objective follows the model"
    )
    assert launch(main, compose, ["init_from=nowhere"]) == 4
    assert launch(main, compose, ["init_from=resume"]) == 2
    for other in (
        "model=gpt2",
        "size=tiny",
        "tokenizer=byte",
        "+model.dropout=0.1",
        "attention=mla",
    ):
        assert launch(main, compose, [*overrides, other]) == 2


def test_a_dry_run_writes_nothing(start, room):
    code, output, _ = start("dry_run=true", "name=plan")
    assert code == 0 and not (room / "runs").exists()
    names = ["device", "model", "data", "baselines", "training", "memory", "compute", "time"]
    assert [line.split()[0] for line in output.split("\n\n")[1].splitlines()] == names


@pytest.mark.parametrize("name", names("experiment"))
def test_every_experiment_runs_shrunk(run, name):
    has_pairs = name in ("reverse", "t5_docstrings")
    data = ["data=synthetic", "data.size=100"] if has_pairs else ["data=text", "data.path=book.txt"]
    folder = run(f"experiment={name}", *data, "tokenizer=byte", "train.steps=2", "train.batch_size=2",
                 "schedule.warmup=0", "model.context_length=32")  # fmt: skip
    assert (folder / "checkpoints/latest").read_text() == "step-00000002\n"
