"""A run from its words to its folder: every family, the same bytes again, whoever looks on."""

import hashlib
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from safetensors.torch import load_file

from tests.parts import ROOT
from train import main
from training.config import compose
from training.launch import launch

TEXT = "".join(f"line {i} of a text, don't {i * i}\n" for i in range(400))


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    """The folder that these words made; or the exit code and what was said."""
    monkeypatch.chdir(tmp_path)
    Path("book.txt").write_text(TEXT)
    usual = ["size=tiny", "model.context=32", "tokenizer=byte", "data=text", "data.path=book.txt"]
    usual += ["train.steps=4", "train.batch_size=4", "eval.windows=4", "precision=fp32"]

    def done(*words):
        replaced = {word.partition("=")[0] for word in words}
        if "data" in replaced:
            replaced.add("data.path")
        before = set(Path("runs").glob("*"))
        code = launch(main, compose, [*(w for w in usual if w.partition("=")[0] not in replaced), *words])
        said = capsys.readouterr()
        return (code, said.err) if code else (set(Path("runs").glob("*")) - before).pop()

    return done


def weights(folder, step=4):
    return (folder / f"checkpoints/step-{step:08}/model.safetensors").read_bytes()


def rows(folder, *wanted):
    found = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    return [tuple(row[name] for name in wanted) for row in found if set(wanted) <= set(row)]


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
    folder = run(*words, "log.every=1", "show.every=2", "eval.every=2")
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


LOOKING_ON = ["eval.every=1", "log.every=1", "show.every=1", "checkpoint.every=1", "eval.windows=1"]


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_the_same_run_gives_the_same_bytes_whoever_looks_on(run, precision):
    usual = ["model.dropout=0.1", f"precision={precision}", "train.micro_batch=2"]
    reference = weights(run(*usual))
    assert weights(run(*usual)) == reference
    assert weights(run(*usual, *LOOKING_ON)) == reference
    assert weights(run(*usual, "seed=1")) != reference


def test_processes_share_a_run(run, tmp_path):
    words = ["size=tiny", "model.context=32", "tokenizer=byte", "data=text", "data.path=book.txt", "name=two"]
    words += ["train.steps=4", "train.batch_size=4", "precision=fp32", "optimizer=adamw", "log.every=1"]
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    done = subprocess.run(
        [*launch, str(ROOT / "train.py"), *words], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    alone = run("optimizer=adamw", "log.every=1", "eval.windows=100")
    for wanted in (("step", "loss"), ("step", "val_loss", "val_tokens")):
        for one, two in zip(rows(alone, *wanted), rows(tmp_path / "runs/two", *wanted), strict=True):
            assert one == pytest.approx(two, rel=1e-5)


@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        (["name=a/b"], 2, "name is 'a/b'; use letters, digits"),
        (["train.micro_batch=3"], 2, "train.micro_batch is 3; expected a divisor of 4"),
        (["schedule.warmup=9"], 2, "warmup is 9 steps and the run has 4; lower warmup"),
        (["optimizer.rate=nan"], 2, "rate is nan; expected a finite number"),
        (["optimizer.rate=-1"], 2, "rate must be above 0 and is -1"),
        (["train.stepz=5"], 2, r"there is no train.stepz \(did you mean train.steps\?\)"),
        (["+train.stepz=5"], 2, "there is no train.stepz"),
        (["~train.steps"], 2, "train.steps"),
        (["train.steps=1.5"], 2, "train.steps"),
        (["device=tpu"], 2, "device is 'tpu'; choose one of: auto, cpu, cuda, mps"),
        (["precision=fp8"], 2, "precision is 'fp8'; choose one of: auto, fp32, bf16, fp16"),
        (["model.init=none"], 2, "model.init is 'none'; choose one of"),
        (["data.path=none.txt"], 3, "there is no file or folder none.txt"),
        (["optimizer=adamw", "optimizer.rate=1e30", "train.grad_clip=0"], 5, "is not finite"),
    ],
)
def test_errors_are_one_sentence(run, words, code, sentence):
    found, said = run(*words)
    errors = [line for line in said.splitlines() if line.startswith("error: ")]
    assert found == code and len(errors) == 1 and re.search(sentence, errors[0]), said
    assert "Traceback" not in said


def test_a_folder_belongs_to_one_run(run):
    assert run("name=mine").name == "mine"
    assert run("name=mine")[1].endswith("runs/mine exists already; choose another name=\n")
    assert len({run().name, run().name, run().name}) == 3, "in the same second, too"
