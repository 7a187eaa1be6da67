"""A resumed run continues exactly where it stopped, with its own settings; only some of them may change."""

import json
import re
import shutil
from dataclasses import asdict
from pathlib import Path

import pytest
import yaml

from configs.compose import compose, compose_raw, flatten
from configs.errors import CheckpointError
from data.store import index_hash
from tests.faults.harness import equal, write_manifest
from tests.training.runs import rows, with_usual
from training.monitor.metrics import truncate_rows
from training.resume import MAX_OVERRIDES, change_policy, check_changes, resolve_config

EXACT = [
    ["model=modern", "precision=bf16"],
    ["model=gpt2", "optimizer=adamw", "precision=fp16"],
    ["model=t5", "eval.every=3"],
    ["model=bert", "optimizer=adamw", "train.patience=2", "eval.every=1"],
    ["model=bart", "data=synthetic", "data.size=200"],
]
OFTEN = ["checkpoint.every=1", "checkpoint.keep=9", "log.every=1", "sample.every=2", "eval.every=2"]
FULL = [*OFTEN, "name=full", "model.dropout=0.1"]


def stopped_after(step, full):
    """A copy of a run as it was at a step, but for the rows that it wrote later."""
    part = full.with_name("part")
    shutil.rmtree(part, ignore_errors=True)
    shutil.copytree(full, part)
    for path in (part / "checkpoints").glob("step-*"):
        if int(path.name[-8:]) > step:
            shutil.rmtree(path)
    (part / "checkpoints/latest").write_text(f"step-{step:08}\n")
    return part


@pytest.mark.parametrize("overrides", EXACT, ids=lambda overrides: overrides[0])
def test_from_every_step_to_the_same_bytes(run, start, overrides):
    full = run(*FULL, "train.micro_batch_size=2", *overrides)
    for step in (1, 2, 3, 4):
        part = stopped_after(step, full)
        code, stdout, stderr = start.plainly("name=part", "resume=true")
        message = (
            f"resuming runs/part from step {step}"
            if step < 4
            else "is finished, all 4 steps are done"
        )
        assert code == 0 and message in stdout, stderr
        equal(part, full)
    state = json.loads((full / "checkpoints/step-00000004/state.json").read_text())
    assert bool(state["scaler"]) == ("precision=fp16" in overrides)


def test_steps_may_grow_but_not_shrink(run, start):
    full = run(*FULL, "schedule=constant")
    run(*FULL, "schedule=constant", "name=grown", "train.steps=2")
    assert start.plainly("name=grown", "resume=true", "train.steps=4")[0] == 0
    equal(Path("runs/grown"), full)
    code, _, stderr = start.plainly("name=grown", "resume=true", "train.steps=3")
    assert code == 2 and re.search(r"4 steps.*train.steps.*3", stderr), stderr


def test_rows_beyond_the_step_are_removed(run, start):
    part = stopped_after(2, run(*FULL))
    with open(part / "metrics.jsonl", "a") as file:
        file.write('{"step": 5, "loss": 1.0}\nnonsense\n{"step": 6, "lo')
    assert start.plainly("name=part", "resume=true")[0] == 0
    assert [step for step, _ in rows(part, "step", "loss")] == [1, 2, 3, 4]
    assert [step for step, _ in rows(part, "step", "full")] == [0, 2, 4, 4]


def test_every_setting_has_a_policy():
    for overrides in (
        [],
        ["model=bart", "data=pairs", "data.path=x", "data.source=a", "data.target=b"],
    ):
        assert all(change_policy(key) for key in flatten(compose_raw(overrides)))


BAD_CHANGES = [
    (
        "seed",
        1,
        "seed was 0 in this run and is now 1; it cannot change in a resumed run: remove it, or",
    ),
    (
        "optimizer.kind",
        "adamw",
        "optimizer.kind was muon in this run and is now adamw; it cannot change",
    ),
    ("train.batch_size", 2, "; it cannot change"),
    (
        "optimizer.lr",
        0.01,
        r"optimizer.lr was 0.02 .* add resume_allow=\[optimizer.lr\] if you mean it",
    ),
    ("train.micro_batch_size", 2, r"was auto .* resume_allow=\[train.micro_batch_size\]"),
    (
        "compile",
        False,
        r"compile was auto in this run and is now false; .* resume_allow=\[compile\]",
    ),
]


@pytest.mark.parametrize(
    ("key", "value", "sentence"), BAD_CHANGES, ids=lambda value: str(value)[:30]
)
def test_settings_that_may_not_change(key, value, sentence):
    before = flatten(compose_raw(()))
    with pytest.raises(ValueError, match=sentence):
        check_changes(before, before | {key: value}, [])
    if "cannot" not in sentence:
        check_changes(before, before | {key: value}, [key])


def test_settings_that_may_change():
    before = flatten(compose_raw(()))
    free = "eval.every eval.max_examples log.every sample.every checkpoint.keep checkpoint.every train.steps"
    free = f"{free} train.tokens train.epochs train.minutes train.patience device wandb.mode data.cache"
    check_changes(before, before | dict.fromkeys(free.split(), 7), [])
    for key, sentence in (
        ("model", "resume_allow names model, which cannot change in a resumed run; remove it"),
        ("log.every", "resume_allow names log.every, which may change without it; remove it"),
        ("optimizer.rat", r"unknown setting \(did you mean optimizer.lr\?\)"),
    ):
        with pytest.raises(ValueError, match=sentence):
            check_changes(before, before, ["schedule", key])


@pytest.fixture
def resume(room):
    """(config, overrides) of resuming one run with more overrides."""
    overrides = with_usual(["name=mine", "optimizer=muon"])
    stored = asdict(compose(overrides)) | {"overrides": overrides}
    Path("runs/mine/checkpoints").mkdir(parents=True)
    Path("runs/mine/config.yaml").write_text(yaml.safe_dump(stored))

    def resolve(*overrides):
        return resolve_config(["name=mine", "resume=true", *overrides])

    return resolve


def test_overrides_change_the_config_of_a_run(resume):
    before, overrides = resume()
    for same in ("data=text", "objective=auto", "optimizer=muon", "model=modern", "size=tiny"):
        assert resume(same)[0] == before, same
    config, more = resume("optimizer.lr=0.01", "resume_allow=[optimizer.lr]")
    changed = {
        key: v for key, v in flatten(asdict(config)).items() if v != flatten(asdict(before))[key]
    }
    assert changed == {"optimizer.lr": 0.01, "resume_allow": ["optimizer.lr"]}
    assert more == [*overrides, "optimizer.lr=0.01"]


def test_overrides_that_a_run_cannot_take(resume):
    for override, sentence in (
        (
            "attention=gqa",
            "model.attention.kind was mha in this run and is now gqa; it cannot change",
        ),
        ("schedule=cosine", r"schedule.\w+ was .* add resume_allow=\[schedule\]"),
        ("experiment=reverse", "it cannot change in a resumed run"),
        ("+train.steps=3", "keeps its set of settings"),
        ("optimizer=adamw,muon", "lists several values"),
    ):
        with pytest.raises(ValueError, match=sentence):
            resume(override)


def edited(change):
    """config.yaml of the run, after change(config)."""
    path = Path("runs/mine/config.yaml")
    config = yaml.safe_load(path.read_text())
    change(config)
    path.write_text(yaml.safe_dump(config, sort_keys=False))


def test_another_option_of_a_group_is_taken_whole(resume):
    config, overrides = resume("optimizer=muon_modern", "resume_allow=[optimizer]")
    muon, muon_modern = (
        compose([f"optimizer={option}"]).optimizer for option in ("muon", "muon_modern")
    )
    assert config.optimizer == muon_modern != muon
    # with what is typed after it, without settings typed for the other option or its former defaults
    edited(lambda c: c["overrides"].append("optimizer.weight_decay=0.5"))
    edited(lambda c: c["optimizer"].update(weight_decay=0.5, lr=0.5, momentum=0.5))
    config, more = resume("optimizer=muon_modern", "optimizer.lr=0.01", "resume_allow=[optimizer]")
    assert config.optimizer == compose(["optimizer=muon_modern", "optimizer.lr=0.01"]).optimizer
    assert more == [*overrides, "optimizer.lr=0.01"]


def test_other_data_is_taken_whole(resume):
    table = ["data=table", "data.path=a.jsonl", "data.field=story"]
    config, overrides = resume(*table, "resume_allow=[data]")
    assert config.data == compose(table).data and "data.path=book.txt" not in overrides
    config, _ = resume("data=tinystories", "resume_allow=[data]")
    assert config.data == compose(["data=tinystories"]).data
    with pytest.raises(ValueError, match="data.path is required"):
        resume("data=table", "resume_allow=[data]")
    with pytest.raises(
        ValueError, match="objective.kind was next_token in this run and is now pairs"
    ):
        resume("data=synthetic", "resume_allow=[data,objective]")


def test_defaults_that_have_changed_since_do_not_change_a_run(resume):
    """As if the defaults had been others when the run began."""

    def old_defaults(config):
        config["optimizer"]["lr"], config["eval"]["every"], config["schedule"]["warmup"] = (
            0.5,
            77,
            3,
        )

    edited(old_defaults)
    for overrides in ([], ["log.every=3"], ["optimizer=muon"], ["train.steps=9"]):
        config, _ = resume(*overrides)
        assert (config.optimizer["lr"], config.eval.every, config.schedule["warmup"]) == (
            0.5,
            77,
            3,
        )
    usual = compose()
    config, _ = resume(
        f"eval.every={usual.eval.every}", "optimizer.lr=0.02", "resume_allow=[optimizer.lr]"
    )
    assert config.eval.every == usual.eval.every, (
        "a typed value is taken, though it is now the default"
    )
    assert config.optimizer["lr"] == usual.optimizer["lr"] == 0.02
    with pytest.raises(ValueError, match="optimizer.lr was 0.5 in this run and is now 0.02"):
        resume("optimizer.lr=0.02")
    edited(lambda config: config.update(schedule={"kind": "constant", "warmup": 3}))
    with pytest.raises(ValueError, match="schedule.kind was constant in this run and is now wsd"):
        resume("schedule=wsd")  # today's default, but not the option of the run


BAD_OVERRIDES = [
    (["+experiment=../../x"], "unknown option experiment=../../x"),
    (["hydra.run.dir=x"], "Hydra's own settings have no effect"),
    (["wandb.project=${oc.env:HOME}"], "interpolations are not supported"),
    (["seed=1,2"], "lists several values"),
    (["seed"], "cannot parse 'seed'"),
    (["=x"], "cannot parse '=x'"),
    (["-m"], "cannot parse '-m'"),
    (["~name"], "unknown setting name"),
    (["@"], "unknown setting @"),
    (["seed@model=1"], "unknown setting seed@model"),
    (["k" * 10_000], "cannot parse 'kkk"),
    (["data=" + "x" * 10_000], "data=x+... is too long"),
    (["data.path=a\0b"], "overrides is .*; expected a list of strings"),
    ([3], "overrides is .*; expected a list of strings"),
    ("seed=1", "overrides is 'seed=1'; expected a list of strings"),
    (["seed=0"] * 1000, "it has 1,000 overrides; expected at most 256"),
    (["seed=0"] * 10_000, "config.yaml is larger than 65,536 bytes"),
]


@pytest.mark.parametrize(
    ("overrides", "sentence"), BAD_OVERRIDES, ids=lambda value: str(value)[:30]
)
def test_stored_overrides_are_untrusted(resume, start, overrides, sentence):
    edited(lambda config: config.update(overrides=overrides))
    with pytest.raises(CheckpointError, match=sentence) as error:
        resume()
    assert len(str(error.value)) < 500
    assert "config.yaml" in str(error.value) and "defaults list" not in str(error.value)
    code, _, stderr = start.plainly("name=mine", "resume=true")
    assert code == 4 and stderr.count("error: ") == 1 and "Traceback" not in stderr


def test_stored_overrides_that_disagree_with_the_config(resume):
    """The config decides; a path is never interpolated."""
    before, _ = resume()
    edited(
        lambda c: c["overrides"].extend(["optimizer.lr=9", "seed=5", r"data.path=\${oc.env:HOME}"])
    )
    assert resume()[0] == before and resume("log.every=10")[0] == before
    with pytest.raises(ValueError, match="optimizer.lr was 0.02 in this run and is now 9"):
        resume("optimizer.lr=9")
    edited(lambda c: c.update(overrides=["seed=0"] * MAX_OVERRIDES))
    assert resume()[0] == before


STORED = [
    ("objective", {}, "objective.kind is None"),
    ("data", {"kind": "text"}, "data.cache is None"),
    ("data", {"kind": "text", "cache": ["/outside"]}, "data.cache is .*; expected a string"),
    ("data", {"kind": "text", "cache": "a\0b"}, "data.cache is 'a"),
    ("optimizer", {"kind": "muon", "lr": -1}, "optimizer .muon. needs a value for momentum"),
    ("schedule", {"kind": "constant", "warmup": "x"}, "schedule .constant.: warmup is 'x'"),
    ("tokenizer", {"kind": "x"}, "tokenizer.kind is 'x'"),
]


@pytest.mark.parametrize(("part", "options", "sentence"), STORED)
def test_a_stored_config_is_checked_as_a_whole(resume, part, options, sentence):
    """An error in it names the file, before the settings on the command line are looked at."""
    edited(lambda config: config.update({part: options}))
    with pytest.raises(CheckpointError, match=f"config.yaml does not describe a run: {sentence}"):
        resume("log.every=10")


def test_tokens_go_to_no_place_that_only_the_config_of_a_run_names(resume, room):
    for place in (room / "outside", "../outside", "~nobody/x", room / "book.txt"):
        edited(lambda config, place=place: config["data"].update(cache=str(place)))
        with pytest.raises(
            CheckpointError, match=f"config.yaml has data.cache: {place}, which has no tokens"
        ):
            resume()
        assert resume(f"data.cache={place}")[0].data["cache"] == str(place)
    assert not Path("outside").exists() and not Path("../outside").exists()
    edited(lambda config: config["data"].update(cache="outside"))
    Path("outside/blog").mkdir(parents=True)
    Path("outside/blog/index.json").write_text("{}")
    with pytest.raises(CheckpointError, match="which has no tokens"):
        resume()
    size = {"n_bytes": 1, "n_items": 1}
    index = {"input_kind": "text", "files": {}, "train": size, "validation": size}
    Path("outside/blog/index.json").write_text(json.dumps(index | {"sha256": index_hash(index)}))
    assert resume()[0].data["cache"] == "outside", "a cache that is in use"


def test_weights_come_from_no_place_that_only_the_config_of_a_run_names(resume):
    for place in ("outside", "openai-community/gpt2"):
        overrides = [f"init_from={place}", "data=text", "data.path=book.txt"]
        edited(
            lambda c, place=place, overrides=overrides: c.update(
                init_from=place, overrides=overrides
            )
        )
        with pytest.raises(
            CheckpointError, match=f"has no checkpoint, .*; add init_from={place} to start"
        ):
            resume()
        assert resume(f"init_from={place}")[0].init_from == place
    Path("runs/mine/checkpoints/step-00000001").mkdir(parents=True)
    assert resume()[0].init_from == place, "it has weights of its own"


def test_an_empty_folder_becomes_a_run(start):
    """It was left by a run that was killed."""
    Path("runs/mine").mkdir(parents=True)
    code, _, stderr = start("name=mine")
    assert code == 2 and "runs/mine already exists; add resume=auto to continue it" in stderr
    assert start("name=mine", "resume=auto", "train.steps=1")[0] == 0


@pytest.mark.parametrize("typed", [[], ["train.steps=4"]])
def test_a_run_ends_where_its_settings_say(run, start, typed):
    """Whatever number of steps its state claims."""
    full = run(*FULL)
    checkpoint = stopped_after(2, full) / "checkpoints/step-00000002"
    state = json.loads((checkpoint / "state.json").read_text())
    (checkpoint / "state.json").write_text(json.dumps(state | {"total_steps": 10**12}))
    write_manifest(checkpoint)
    assert start.plainly("name=part", "resume=true", *typed)[0] == 0
    equal(full.with_name("part"), full)


def test_measured_minutes_are_kept(run, start):
    folder = run(
        "name=timed", "train.steps=9", "train.minutes=9", "checkpoint.every=1", "checkpoint.keep=9"
    )
    folder = stopped_after(2, folder)
    checkpoint = folder / "checkpoints/step-00000002"
    state = json.loads((checkpoint / "state.json").read_text())
    (checkpoint / "state.json").write_text(json.dumps(state | {"total_steps": 5}))
    write_manifest(checkpoint)
    assert start.plainly("name=part", "resume=true")[0] == 0
    assert (folder / "checkpoints/latest").read_text() == "step-00000005\n"


def test_a_run_of_an_older_version_is_refused(resume, start):
    edited(lambda config: config.pop("overrides"))
    for args in (["name=mine", "resume=true"], ["init_from=runs/mine"]):
        code, _, stderr = start.plainly(*args)
        assert (
            code == 4
            and "config.yaml is of an older format; use this run with the version" in stderr
        )


def test_a_run_is_resumed_by_its_name(resume, start):
    for name in ("lr-0.01", "lr-0.02"):
        shutil.copytree("runs/mine", f"runs/sweep-2001/{name}", copy_function=shutil.copyfile)
    for args, sentence in (
        (["resume=true"], "resume=true needs a name=...; the newest run is runs/"),
        (["name=mine"], "runs/mine already exists; add resume=true to continue it"),
        (["name=sweep-2001/lr-0.03", "resume=true"], "(did you mean runs/sweep-2001/lr-0.0"),
        (["name=lr-0.02", "resume=true"], "(did you mean runs/sweep-2001/lr-0.02?)"),
        (["name=mime", "resume=true"], "no run runs/mime (did you mean runs/mine?); resume=auto w"),
        (["resume_allow=[seed]"], "resume_allow has an effect only with resume=true"),
    ):
        code, _, stderr = start.plainly(*args)
        assert code == 2 and sentence in stderr
    for place in ("mine", "runs/mime"):
        code, _, stderr = start.plainly(f"init_from={place}")
        assert code == 4 and f"no such run: {place} (did you mean runs/mine?)\n" in stderr


def test_runs_that_are_new_finished_or_without_checkpoints(start):
    args = ["name=mine", "resume=auto", "train.steps=1"]
    code, stdout, _ = start(*args)
    assert code == 0 and "there is no run runs/mine yet; starting at step 0" in stdout
    code, stdout, _ = start(*args)
    assert code == 0 and "runs/mine is finished, all 1 steps are done; raise train.steps" in stdout
    Path("book.txt").write_text("another text\n" * 500)
    code, _, stderr = start(*args)
    changed = (
        "the text has changed since runs/mine was trained on it, or is that of another data.path"
    )
    assert code == 3 and changed in stderr
    assert start(*args, "resume_allow=[data]")[0] == 0
    shutil.rmtree("runs/mine/checkpoints")
    code, stdout, _ = start(*args)
    assert code == 0 and "runs/mine has no checkpoint yet; starting at step 0" in stdout


@pytest.mark.parametrize("every", ["null", "2"])
def test_the_best_stays_the_best(run, start, every):
    """A checkpoint is evaluated after it was saved, and again after a resume: a longer run that gets worse
    keeps it."""
    folder = run("name=mine", "train.steps=3", f"eval.every={every}", "checkpoint.keep=1")
    assert (folder / "checkpoints/best").read_text() == "step-00000003\n"
    worse = [
        "train.steps=6",
        "optimizer.lr=9",
        "optimizer.adamw_lr_ratio=9",
        "resume_allow=[optimizer]",
    ]
    code, _, stderr = start.plainly("name=mine", "resume=true", *worse)
    losses = {step: loss for step, loss, full in rows(folder, "step", "val_loss", "full") if step}
    assert code == 0 and min(losses, key=losses.get) == 3 < max(losses), stderr
    assert (folder / "checkpoints/best").read_text() == "step-00000003\n"
    assert (folder / "checkpoints/step-00000003").is_dir()


def test_a_resume_keeps_long_rows(tmp_path):
    lines = [json.dumps({"step": step, "text": "x" * 3_000_000}) + "\n" for step in (1, 2)]
    (tmp_path / "samples.jsonl").write_text("".join(lines))
    truncate_rows(tmp_path / "samples.jsonl", lambda row: row["step"] < 2)
    assert (tmp_path / "samples.jsonl").read_text() == lines[0]
