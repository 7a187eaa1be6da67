"""What users do with train.py, from the command line to the files of the run."""

import errno
import math
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from hydra.core.hydra_config import HydraConfig

import train
from configs.compose import compose
from model.checkpoint import load_run
from model.generate.decode import generate
from model.runs import list_checkpoints, read_best, step_name, step_of
from tests.parts import names, refused
from tests.training.runs import last, read_lines, rows, tensors, with_usual
from training import checkpointer
from training.evaluate import main as evaluate
from training.plot import draw_run
from training.run_folder import code_hashes, make_folder
from training.settings import compose_run

ARCHITECTURES = {
    "model=modern": "val_bpb",
    "model=modern_encoder": "val_accuracy",
    "model=t5": "val_loss",
    "model=bart data=synthetic data.size=200": "val_exact_match",
    "model=llama data=synthetic data.size=200": "val_exact_match",
}


@pytest.mark.parametrize("overrides", ARCHITECTURES)
def test_every_architecture_trains_by_the_same_command(run, overrides):
    folder = run(*overrides.split(), "log.every=1", "sample.every=2", "eval.every=2")
    assert [step for step, _ in rows(folder, "step", "loss")] == [1, 2, 3, 4]
    assert rows(folder, "step", "full") == [(0, False), (2, False), (4, False), (4, True)]
    assert all(0 < loss < 12 for [loss] in rows(folder, "val_loss"))
    assert rows(folder, ARCHITECTURES[overrides])
    samples = read_lines(folder / "samples.jsonl")
    assert [sample["step"] for sample in samples] == [2, 4]
    assert all(len(sample) >= 3 for sample in samples)


def test_a_sample_is_what_decoding_with_a_cache_gives(run):
    folder = run("model.context_length=64", "sample.every=4")
    [row] = read_lines(folder / "samples.jsonl")
    model, tokenizer, *_ = load_run(folder)
    prompt = tokenizer.encode(row["prompt"]).tolist()
    steps = generate(model, [prompt], max_new_tokens=64 - len(prompt), stop=tokenizer.end_ids)
    assert row["continuation"] == tokenizer.decode_with_specials(i for [i] in steps)


def test_what_a_run_prints(start, monkeypatch):
    monkeypatch.setattr("training.log.draw_run", draw_run)
    output = start("log.every=1", "eval.every=2", "name=lines").out
    folder = Path("runs/lines")
    for step, loss, lr, norm in rows(folder, "step", "loss", "lr", "grad_norm"):
        line = rf"step +{step}  loss +{loss:.3f}  lr {lr:.1e}  grad {norm:.2f} +[\d,]+ tok/s"
        assert re.search(line + r"  ETA \d:\d\d:\d\d\n", output), output
    for step, loss, bpb, full in rows(folder, "step", "val_loss", "val_bpb", "full"):
        figures = f"val loss {loss:.3f}  perplexity {math.exp(loss):,.1f}  {bpb:.3f} bits/byte"
        assert f"step {step:>6}  {figures}{'  (all examples)' * full}\n" in output
    assert max(map(len, output.splitlines())) <= 80
    assert "training    4 steps, 0.04 epochs, 4 sequences per step\n" in output
    assert "\nto sample from it: python sample.py --run runs/lines --interactive\n" in output
    assert (folder / "curve.png").read_bytes().startswith(b"\x89PNG")
    assert yaml.safe_load((folder / "config.yaml").read_text())["code"] == code_hashes()


def test_observers_change_no_weight(run):
    """Nor does recomputing."""
    usual = ["model.dropout=0.1", "train.micro_batch_size=2", "precision=bf16", "train.steps=2"]
    observers = ["eval.every=1", "log.every=1", "sample.every=1", "checkpoint.every=1"]
    none = ["eval.every=null", "log.every=100", "sample.every=null", "checkpoint.every=null"]
    observed = tensors(run(*usual, *observers, "train.recompute=block"))
    assert observed == tensors(run(*usual, *none, "debug=true"))


def test_a_folder_belongs_to_one_run(run, start):
    assert run("name=mine", "train.steps=0").name == "mine"
    assert "runs/mine already exists; add resume=true to" in start("name=mine", code=2).err
    first, second = (make_folder(compose()) for _ in range(2))
    assert first != second, "even in the same second"


def test_a_run_from_python(start, monkeypatch, command):
    """It needs no command line."""
    start("name=base", "model=gpt2", "sample.every=null")
    monkeypatch.setattr(HydraConfig.instance(), "cfg", None)
    loss = train.train(compose_run(with_usual(["init_from=runs/base", "name=tuned"])))
    assert last("runs/tuned", "val_loss", "full") == (loss, True)
    load_run("runs/tuned")
    command(evaluate, "--run", "runs/tuned")
    train.train(compose_run(with_usual(["train.steps=1"])))
    for override, sentence in {"resume=true": "are for a command line", "seed=0": "exists"}.items():
        with refused(sentence):
            compose_run(["name=tuned", override])


def test_a_warmup_that_is_longer_than_the_text_allows(start):
    errors = start("train.epochs=0.01", "train.steps=null", "schedule.warmup=9", code=2).err
    assert "the run has only" in errors and not list(Path("runs").iterdir())


def test_a_folder_that_another_process_has_made_meanwhile(start, monkeypatch):
    """As it was free when the settings were read, and the lock is, for that run has ended."""
    check = train.distributed.start

    def late(config):
        if not Path("runs/mine").exists():
            Path("runs/mine").mkdir(parents=True)
            Path("runs/mine/config.yaml").write_text("theirs")
        return check(config)

    monkeypatch.setattr("train.distributed.start", late)
    assert "runs/mine already exists; add resume=true" in start("name=mine", code=2).err
    assert Path("runs/mine/config.yaml").read_text() == "theirs"


# the learning rate soon becomes far too high
WORSE = ["optimizer=adamw", "optimizer.lr=1", "schedule=constant", "schedule.warmup=0.9"]


def test_patience_stops_a_run_early_and_the_best_checkpoint_is_kept(start):
    overrides = ["train.steps=40", "eval.every=2", "train.patience=3", "checkpoint.keep=1"]
    output = start(*WORSE, *overrides, "checkpoint.every=null", "name=early").out
    folder = Path("runs/early")
    losses = {step: loss for step, loss, full in rows(folder, "step", "val_loss", "full") if step}
    best = min(losses, key=losses.get)
    assert max(losses) == best + 6 < 40
    kept = [step_of(path) for path in list_checkpoints(folder)]
    assert kept == [best + 6, best] and read_best(folder) == step_name(best)
    assert "stopped early: no improvement in 3 evaluations\n" in output
    assert f"the best checkpoint is that of step {best} (val loss {losses[best]:.3f})" in output
    assert "--run runs/early --interactive --checkpoint best\n" in output
    worse = ["schedule.warmup=0", "train.patience=1", "eval.every=2", "name=never_better"]
    output = start(*WORSE, *worse).out
    assert "stopped early: no improvement in 1 eval" in output and "best checkpoint" not in output


def test_a_best_checkpoint_that_failed_is_written_later(start, monkeypatch):
    usual = [*WORSE, "train.steps=12", "eval.every=2", "checkpoint.every=null"]
    start(*usual, "name=whole")
    best = read_best(Path("runs/whole"))
    assert best not in ("step-00000000", "step-00000012")
    save_checkpoint = checkpointer.write_checkpoint
    left = [best]

    def failing(run, step, *rest):
        if left and step_name(step) == best:
            left.pop()
            raise OSError(errno.ENOSPC, "No space left on device")
        save_checkpoint(run, step, *rest)

    monkeypatch.setattr("training.checkpointer.write_checkpoint", failing)
    assert start(*usual, "name=full").err.count("a checkpoint could not be saved") == 1
    assert read_best(Path("runs/full")) == best
    for path in Path("runs/whole/checkpoints", best).glob("*.safetensors"):
        assert Path("runs/full/checkpoints", best, path.name).read_bytes() == path.read_bytes()


def test_minutes_follow_the_clock_also_after_a_resume(start, monkeypatch):
    """The clock goes on by ten seconds whenever it is read: at the start and in each step."""
    times = iter(range(0, 10_000, 10))
    monkeypatch.setattr("train.time", SimpleNamespace(perf_counter=lambda: next(times)))
    linear = ["schedule=linear", "schedule.warmup=0", "log.every=1"]
    output = start("train.minutes=1", *linear, "name=timed").out
    assert "training    1 minutes, and then the final evaluation" in output
    folder = "runs/timed"
    shares = [lr / 0.02 for [lr] in rows(folder, "lr")]
    assert shares == pytest.approx([1, 5 / 6, 4 / 6, 3 / 6, 2 / 6, 1 / 6])
    assert "runs/timed is finished; raise" in start("name=timed", "resume=true").out
    start("name=timed", "resume=true", "train.minutes=2")
    assert [seconds for seconds, _ in rows(folder, "seconds", "loss")] == list(range(10, 130, 10))


@pytest.mark.parametrize("name", names("experiment"))
def test_every_experiment_runs_shrunk(run, name):
    data = ["data=text", "data.path=book.txt"]
    if name == "reverse":
        data = ["data=synthetic", "data.size=100"]
    sizes = ["train.steps=1", "train.batch_size=2", "schedule.warmup=0", "model.context_length=32"]
    folder = run(f"experiment={name}", *data, "tokenizer=byte", *sizes, "log.every=1")
    assert len(rows(folder, "loss")) == 1


def test_a_mix_and_a_validation_file(run):
    Path("other.txt").write_text("other words\n" * 300)
    parts = "a:{kind:text,path:book.txt,weight:3},b:{kind:text,path:book.txt,val_path:other.txt}"
    folder = run("data=mix", f"data.sources={{{parts}}}", "train.batch_size=6")
    found = last(folder, "val_loss_a", "val_loss_b", "tokens", "tokens_a", "tokens_b")
    assert found[2:] == (768, 576, 192)


def test_a_validation_loss_that_is_not_finite_ends_the_run(start):
    errors = start("model=gpt2", "optimizer.lr=1e30", "train.steps=1", "name=nan", code=5).err
    assert "step 1: the validation loss is not finite (nan)" in errors
    assert not list(Path("runs/nan").rglob("*.safetensors"))
