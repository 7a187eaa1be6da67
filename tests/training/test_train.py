"""A run from its words to its folder: every family, the same bytes again, whoever looks on."""

import hashlib
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from configs.compose import compose
from data.corpus import load
from tests.parts import ROOT, names
from tests.training.runs import USUAL, rows, weights, with_usual
from train import main
from training.sweep import launch

FAMILIES = [
    ["model=modern"],
    ["model=gpt2", "optimizer=adamw", "schedule=cosine"],
    ["model=deepseek", "attention=mla"],
    ["model=bert"],
    ["model=t5"],
    ["model=bart", "data=synthetic", "data.size=200"],
    ["model=llama", "data=synthetic", "data.size=200"],
    ["model=vaswani", "data=synthetic", "data.size=200", "schedule=noam"],
]


@pytest.mark.parametrize("words", FAMILIES, ids=lambda words: words[0])
def test_every_family_trains_by_the_same_command(run, words):
    folder = run(*words, "log.every=1", "sample.every=2", "eval.every=2")
    assert [step for step, _ in rows(folder, "step", "loss")] == [1, 2, 3, 4]
    judged = rows(folder, "step", "val_loss", "full")
    assert [(step, full) for step, _, full in judged] == [(0, False), (2, False), (4, False), (4, True)]
    assert all(0 < loss < 12 for _, loss, _ in judged)
    assert bool(rows(folder, "val_bpb")) == (words[0] in ("model=modern", "model=gpt2", "model=deepseek"))
    assert bool(rows(folder, "val_exact")) == ("data=synthetic" in words)
    assert bool(rows(folder, "val_accuracy")) == (words[0] == "model=bert")
    assert len(rows(folder, "val_loss_other_source")) == (
        words[0] in ("model=t5", "model=bart", "model=vaswani")
    )
    samples = [json.loads(line) for line in (folder / "samples.jsonl").read_text().splitlines()]
    assert [sample["step"] for sample in samples] == [2, 4] and all(len(sample) >= 3 for sample in samples)


def test_a_checkpoint_lists_what_it_holds(run):
    folder = run("checkpoint.every=1", "checkpoint.keep=2") / "checkpoints"
    assert (folder / "latest").read_text() == "step-00000004\n"
    steps = sorted(path.name for path in folder.iterdir() if path.is_dir())
    assert steps == ["step-00000003", "step-00000004"]
    manifest = json.loads((folder / "step-00000004/manifest.json").read_text())
    assert set(manifest) == {"model.safetensors", "optimizer.safetensors", "state.json"}
    for name, entry in manifest.items():
        data = (folder / "step-00000004" / name).read_bytes()
        assert entry == {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    names = load_file(folder / "step-00000004/optimizer.safetensors")
    assert any(name.endswith("momentum_buffer") for name in names)
    assert any(name.endswith("exp_avg_sq") for name in names)


# what looks on, in twelve ways; none of them may move a bit of the weights
LOOKING_ON = [
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


@pytest.mark.parametrize("looking", LOOKING_ON, ids=lambda words: words[0])
def test_whoever_looks_on_changes_no_weight(run, reference, looking):
    usual = ["model.dropout=0.1", "train.micro_batch_size=2"]
    if not reference:
        reference["weights"] = weights(run(*usual))
    assert weights(run(*usual, *looking)) == reference["weights"]


def test_the_same_words_give_the_same_bytes(run):
    usual = ["model.dropout=0.1", "precision=bf16", "train.micro_batch_size=2"]
    assert weights(run(*usual)) == weights(run(*usual, "eval.every=1", "sample.every=1"))
    assert weights(run(*usual, "seed=1")) != weights(run(*usual))


def test_processes_share_a_run(run, tmp_path):
    words = [
        "size=tiny",
        "model.context_length=32",
        "tokenizer=byte",
        "data=text",
        "data.path=book.txt",
        "name=two",
    ]
    words += ["train.steps=4", "train.batch_size=4", "precision=fp32", "optimizer=adamw", "log.every=1"]
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    done = subprocess.run(
        [*launch, str(ROOT / "train.py"), *words], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    alone = run("optimizer=adamw", "log.every=1", "eval.max_examples=100")
    for wanted in (("step", "loss"), ("step", "val_loss", "val_tokens")):
        for one, two in zip(rows(alone, *wanted), rows(tmp_path / "runs/two", *wanted), strict=True):
            assert one == pytest.approx(two, rel=1e-5)


@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        (["name=a/b"], 2, "name is 'a/b'; use letters, digits"),
        (["train.micro_batch_size=3"], 2, "train.micro_batch_size is 3; expected a divisor of 4"),
        (["schedule.warmup=9"], 2, "warmup is 9 steps and the run has 4; lower warmup"),
        (["optimizer.lr=nan"], 2, "rate is nan; expected a finite number"),
        (["optimizer.lr=-1"], 2, "rate must be above 0 and is -1"),
        (["device=tpu"], 2, "device is 'tpu'; choose one of: auto, cpu, cuda, mps"),
        (["precision=fp8"], 2, "precision is 'fp8'; choose one of: auto, fp32, bf16, fp16"),
        (["model.init=none"], 2, "model.init is 'none'; choose one of"),
        (["model.n_heads=3"], 2, r"d_model \(\d+\) must be a multiple of n_heads \(3\)"),
        (["data.path=none.txt"], 3, "there is no file or folder none.txt"),
        (
            ["--steps=3"],
            2,
            "--steps is not among --help, --cfg job, --info and -m; a setting has no dashes: steps=",
        ),
        (["-m", "name=x", "seed=1,2"], 2, "name=x: each run of a sweep is new and has a name of its own"),
        (["-m", "model=gpt2,nope"], 2, "there is no model=nope"),
    ],
)
def test_errors_are_one_sentence(start, words, code, sentence):
    found, _, said = start(*words)
    errors = [line for line in said.splitlines() if line.startswith("error: ")]
    assert found == code and len(errors) == 1 and re.search(sentence, errors[0]), said
    assert "Traceback" not in said
    assert not list(Path("runs").glob("*")), "nothing is left of a run that never began"


def test_a_run_says_what_it_ran_on_and_what_it_did_not_learn(start):
    code, said, _ = start("name=short", "train.steps=1")
    assert code == 0 and "warning: to know how often each token occurs is enough for a loss of" in said
    git = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True)
    told = Path("runs/short/environment.txt").read_text()
    assert f"torch {torch.__version__}" in told and git.stdout.strip() in told
    code, said, _ = start("train.steps=40", "optimizer=adamw", "optimizer.lr=0.01")
    assert code == 0 and "warning" not in said


def test_debug_shows_where_an_error_came_from(start):
    code, _, said = start("name=a/b", "debug=true")
    assert code == 2 and "Traceback" in said and said.splitlines()[-1].startswith("error: name is")


def test_numbers_that_go_wrong_are_told_with_step_and_batch(start):
    words = ["optimizer=adamw", "optimizer.lr=1e30", "train.grad_clip=0", "checkpoint.every=1", "name=lost"]
    code, _, said = start(*words)
    found = re.search(
        r"error: step (\d+): the (loss|gradient) is not finite \(.*\), on windows (.*) \.\.\. of", said
    )
    assert code == 5 and found, said
    wrong = int(found[1])
    windows = load(compose(with_usual(words))).train.example_ids(wrong - 1)
    assert found[3] == ", ".join(map(str, windows))
    latest = Path("runs/lost/checkpoints/latest").read_text().strip()
    assert latest == f"step-{wrong - 1:08}", "the last good one"
    assert all(
        t.isfinite().all() for t in load_file(f"runs/lost/checkpoints/{latest}/model.safetensors").values()
    )


def test_a_folder_belongs_to_one_run(run, start):
    assert run("name=mine").name == "mine"
    assert start("name=mine")[2].endswith("go on with it by resume=true, or choose another name=\n")
    assert len({run().name, run().name, run().name}) == 3, "in the same second, too"


# a rate that soon is far too high
WORSE = ["eval.every=2", "optimizer=adamw", "optimizer.lr=1", "schedule=constant", "schedule.warmup=0.9"]


def test_the_best_is_kept(run):
    folder = run(*WORSE, "train.steps=40", "checkpoint.keep=1", "checkpoint.every=null")
    judged = {
        step: loss for step, loss, full in rows(folder, "step", "val_loss", "full") if step and not full
    }
    best, latest = ((folder / "checkpoints" / name).read_text().strip() for name in ("best", "latest"))
    assert best == f"step-{min(judged, key=judged.get):08}" != latest == "step-00000040"
    kept = {path.name for path in (folder / "checkpoints").iterdir() if path.is_dir()}
    assert kept == {best, latest}


def test_patience_ends_a_run_that_gets_no_better(run):
    folder = run(*WORSE, "train.steps=40", "train.patience=3")
    losses = [loss for _, loss, full in rows(folder, "step", "val_loss", "full") if not full]
    best = losses.index(min(losses))
    stopped = rows(folder, "step", "full")[-1][0]
    assert stopped == 2 * (best + 3) < 40
    assert (folder / "checkpoints/latest").read_text() == f"step-{stopped:08}\n"


def test_a_run_ends_after_its_tokens(run):
    folder = run(
        "train.steps=null", "train.tokens=300", "log.every=1", "schedule=linear", "schedule.warmup=0"
    )
    assert [step for step, _ in rows(folder, "step", "loss")] == [1, 2, 3], "128 tokens a step"
    rates = [rate for _, rate in rows(folder, "step", "lr")]
    assert rates == pytest.approx([0.02, 0.02 * 2 / 3, 0.02 / 3]), "the schedule follows"


def test_minutes_become_steps(start):
    code, said, _ = start("dry_run=true", "train.steps=null", "train.minutes=1")
    steps, ms = (
        int(re.search(p, said)[1].replace(",", "")) for p in (r"training +([\d,]+) steps", r", ([\d,]+) ms")
    )
    assert code == 0 and steps * ms == pytest.approx(60_000, rel=0.6), said
    assert start("dry_run=true", "train.steps=3", "train.minutes=1")[1].count("3 steps of 4 windows") == 1


BESIDE = [word for word in USUAL if not word.startswith(("size", "model", "tokenizer", "train.steps"))]


def test_steps_0_only_judges(run):
    trained = run("name=base", "model=gpt2")
    assert launch(main, compose, ["init_from=runs/base", *BESIDE, "train.steps=0", "name=judged"]) == 0
    folder = trained.with_name("judged")
    assert rows(folder, "val_loss", "full") == rows(trained, "val_loss", "full")[-1:]
    assert not (folder / "checkpoints").exists()


def test_a_run_starts_from_another(run):
    run("name=base", "model=bert")
    words = ["init_from=runs/base", *BESIDE, "train.steps=2"]
    assert launch(main, compose, [*words, "name=tuned"]) == 0
    first, last = rows(Path("runs/tuned"), "val_loss")[0], rows(Path("runs/base"), "val_loss")[-2]
    assert first == last, "it begins where the other ended"
    assert compose(words).objective["kind"] == "masked", "the objective follows the model that came"
    assert launch(main, compose, ["init_from=nowhere"]) == 4
    for other in ("model=gpt2", "size=tiny", "tokenizer=byte", "+model.dropout=0.1", "attention=mla"):
        assert launch(main, compose, [*words, other]) == 2


def test_a_dry_run_makes_nothing(start, room):
    code, said, _ = start("dry_run=true", "name=plan")
    assert code == 0 and not (room / "runs").exists()
    for what in ("device ", "model ", "data ", "guessing ", "training ", "memory ", "arithmetic ", "time "):
        assert any(line.startswith(what) for line in said.splitlines()), what


@pytest.mark.parametrize("name", names("experiment"))
def test_every_experiment_runs_shrunk(run, name):
    of_pairs = name in ("reverse", "t5_docstrings")
    data = ["data=synthetic", "data.size=100"] if of_pairs else ["data=text", "data.path=book.txt"]
    folder = run(f"experiment={name}", *data, "tokenizer=byte", "train.steps=2", "train.batch_size=2",
                 "schedule.warmup=0", "model.context_length=32")  # fmt: skip
    assert (folder / "checkpoints/latest").read_text() == "step-00000002\n"
