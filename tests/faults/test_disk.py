"""A disk that is full, read-only or gone; and one that loses unsynced data in a power failure."""

import json
import os
import random
import re
import shutil
from pathlib import Path

import pytest
import safetensors.torch
import torch

from configs.errors import CheckpointError
from data import disk
from model.checkpoint.files import step_dir, step_of, verify, whole_checkpoints
from model.checkpoint.save import prune, save
from tests.faults.harness import STEPS, equal, overridden, run_trials, train, verified_steps
from tests.faults.shim import Shim, full, log, operations


def full_at(operation, room):
    """One refused operation: at most a warning, and the run comes to the same end."""
    code, output = train(room, overridden(), Shim(operation, full, below="runs/run/"))
    folder = room / "runs/run"
    assert "Traceback" not in output, output
    assert code == 0 or (code == 6 and output.count("error: ") == 1), output
    verified_steps(folder)
    if code == 6:  # refused before its first step, or at its last checkpoint
        assert "no space left on device" in output.lower(), output
        shutil.rmtree(folder, ignore_errors=not verified_steps(folder))
    assert train(room, overridden("resume=auto"))[0] == 0
    equal(folder)


def test_smoke(tmp_path):
    n = len(operations(tmp_path, overridden()))
    run_trials(full_at, random.Random(3).sample(range(20, n), 5), tmp_path)


@pytest.mark.faults
def test_full_at_every_other_operation(tmp_path):
    n = len(operations(tmp_path, overridden()))
    run_trials(full_at, range(1, n + 1, 2), tmp_path)


def full_from(operation, room):
    """A disk that stays full: three checkpoints fail and the run ends; earlier ones are untouched."""
    long = overridden("train.steps=9", "eval.every=null", "sample.every=null", "checkpoint.keep=20")
    code, output = train(room, long, Shim(operation, full, below="runs/run/", always=True))
    folder = room / "runs/run"
    assert code == 6 and "Traceback" not in output, output
    kept = verified_steps(folder)
    if kept:
        assert "3 checkpoints in a row could not be saved" in output or "could not be saved" in output
        assert output.count("a checkpoint could not be saved") == 1, "one warning"
        assert kept == list(range(1, len(kept) + 1))
        code, output = train(room, [*long, "resume=auto"])
        assert code == 0 and f"resuming runs/run from step {kept[-1]}" in output, output


@pytest.mark.faults
def test_it_stays_full(tmp_path):
    run_trials(full_from, range(60, 200, 7), tmp_path)


def away(place):
    """Rename the run's folder when its second checkpoint appears."""

    def act(name, real, args):
        if name == "rename" and str(args[2]).endswith("00000002"):
            os.rename(Path(args[0]).parents[1], place)

    return act


def test_a_folder_that_disappears(tmp_path):
    long = overridden("train.steps=12", "eval.every=null", "sample.every=null")
    code, output = train(
        tmp_path, long, Shim(1, away(tmp_path / "elsewhere"), below="runs/run/", always=True)
    )
    assert code == 6 and output.count("error: 3 checkpoints in a row could not be saved") == 1, output
    assert output.count("warning: a checkpoint could not be saved") == 1
    assert output.count("metrics.jsonl cannot be written") == 1
    assert not (tmp_path / "runs/run").exists() and verified_steps(tmp_path / "elsewhere") == [1]


def test_free_space_is_checked_before_the_first_step(tmp_path):
    def little():
        shutil.disk_usage = lambda path: type("Usage", (), {"free": 1000})

    code, output = train(tmp_path, overridden(), little)
    assert code == 6 and "error: the checkpoints of this run need" in output
    assert re.search(r"need \d+ KiB and .* has 1000 bytes left; free some space", output), output
    assert not (tmp_path / "runs").exists()


def after_power_loss(log, keeps_names):
    """({path: bytes}, folders) of a disk that keeps only what was synced: the contents of files and, unless
    keeps_names, the names in folders."""
    names, folders = {}, set()  # as the run sees them; a file is [its contents, what of them is durable]
    durable, durable_folders = {}, set()
    for name, path, *rest in log:
        if name == "open":
            names[path] = [b"", b""]
        elif name == "mkdir":
            folders.add(path)
        elif name == "write":
            names[path][0] += bytes.fromhex(rest[-1])
        elif name == "fsync" and path in names:
            names[path][1] = names[path][0]
        elif name == "fsync":
            inside = {p: file for p, file in names.items() if os.path.dirname(p) == path}
            durable = {p: file for p, file in durable.items() if os.path.dirname(p) != path} | inside
            durable_folders = {p for p in durable_folders if os.path.dirname(p) != path}
            durable_folders |= {p for p in folders if os.path.dirname(p) == path}
        elif name in ("rename", "replace"):
            names, folders = moved(names, path, rest[0]), set(moved(dict.fromkeys(folders), path, rest[0]))
            durable = {p: file for p, file in durable.items() if p == path} | moved(
                durable, path + "/", rest[0] + "/"
            )
        elif name == "unlink":
            names.pop(path, None)
        elif name == "rmdir":
            folders.discard(path)
    files = names if keeps_names else durable
    return {path: file[1] for path, file in files.items()}, folders if keeps_names else durable_folders


def moved(entries, old, new):
    whole = {path: path == old or path.startswith(old.rstrip("/") + "/") for path in entries}
    return {new.rstrip("/") + p[len(old.rstrip("/")) :] if whole[p] else p: e for p, e in entries.items()}


def newest_after_power_loss(log, room):
    """The newest checkpoint at the end; after each prefix of the log, all visible ones are undamaged."""
    newest = 0
    for n in range(len(log) + 1):
        for keeps_names in (True, False):
            files, folders = after_power_loss(log[:n], keeps_names)
            steps = [Path(folder) for folder in folders if re.fullmatch(r"step-\d{8}", Path(folder).name)]
            for step in steps:
                shutil.rmtree(room / step.name, ignore_errors=True)
                (room / step.name).mkdir()
                for path, data in files.items():
                    if Path(path).parent == step:
                        (room / step.name / Path(path).name).write_bytes(data)
                verify(room / step.name)
            there = max((int(step.name[-8:]) for step in steps), default=0)
            if not keeps_names:
                assert there >= newest, "the newest went back"
                newest = there
    return newest


def written(room, monkeypatch):
    """The log of saving three checkpoints."""
    place = room / "runs/run/checkpoints"
    place.parent.mkdir(parents=True)
    for name in (
        "open",
        "fsync",
        "write",
        "pwrite",
        "rename",
        "replace",
        "unlink",
        "rmdir",
        "mkdir",
        "ftruncate",
    ):
        monkeypatch.setattr(os, name, getattr(os, name))  # restored after the test
    Shim(1, log(room / "log.jsonl"), always=True)()
    for step in (1, 2, 3):
        tensors = {"model": {"a": torch.arange(9.0)}, "optimizer": {"a.m": torch.ones(9) * step}}
        save(place, tensors, {"step": step})
    return [json.loads(line) for line in (room / "log.jsonl").read_text().splitlines()]


def test_power_may_fail_at_any_operation(tmp_path, monkeypatch):
    assert newest_after_power_loss(written(tmp_path, monkeypatch), tmp_path) == 3


@pytest.mark.parametrize("left_out", ["files", "their folder", "before the rename"])
def test_the_simulation_detects_missing_syncs(tmp_path, monkeypatch, left_out):
    log = written(tmp_path, monkeypatch)
    if left_out == "files":
        log = [entry for entry in log if entry[0] != "fsync" or not Path(entry[1]).suffix]
    elif left_out == "their folder":
        log = [entry for entry in log if entry[0] != "fsync" or not entry[1].endswith(".draft")]
    else:
        log = sorted(log, key=lambda entry: entry[0] == "fsync")
    with pytest.raises((CheckpointError, AssertionError)):
        assert newest_after_power_loss(log, tmp_path) == 3


def test_old_checkpoints_are_deleted_after_the_new_one_is_complete(tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr(
        disk, "atomic_rmtree", lambda path: seen.append((path.name, verified_steps(tmp_path)))
    )
    for step in range(1, 6):
        save(tmp_path / "checkpoints", {"model": {"a": torch.ones(2)}, "optimizer": {}}, {"step": step})
        prune(tmp_path / "checkpoints", 2)
    assert all(len([s for s in there if step_dir(s) > gone]) >= 2 for gone, there in seen) and seen


def test_a_copy_is_saved(tmp_path):
    """Weights may change while the thread writes them."""
    from safetensors.torch import load_file

    from training.checkpointer import AsyncCheckpointer

    saver, weight = AsyncCheckpointer(tmp_path / "checkpoints", 2), torch.zeros(1000)
    for step in (1, 2, 3):
        weight.fill_(step)
        saver.save({"step": step}, lambda: {"model": {"a": weight}, "optimizer": {}})
        weight.fill_(-1)
    saver.wait()
    saver.close()
    assert (load_file(tmp_path / f"checkpoints/{step_dir(3)}/model.safetensors")["a"] == 3).all()
    assert saver.count == STEPS - 1


def test_the_bytes_are_those_of_the_safetensors_library(tmp_path):
    """The same bytes again, whatever the order of the tensors."""
    tensors = {"step": torch.tensor(3.0), "transposed": torch.arange(12.0).reshape(3, 4).T}
    for i, dtype in enumerate([torch.int64, torch.float32, torch.bfloat16, torch.bool]):
        tensors[f"{i}.weight"] = torch.arange(6 * i).reshape(i, 6).to(dtype)
    files = []
    for step, named in enumerate((tensors, dict(reversed(tensors.items()))), 1):
        save(tmp_path, {"model": named, "optimizer": {}}, {"step": step})
        verify(tmp_path / step_dir(step))
        files.append((tmp_path / step_dir(step) / "model.safetensors").read_bytes())
    contiguous = {name: tensor.contiguous() for name, tensor in tensors.items()}
    assert files[0] == files[1] == safetensors.torch.save(contiguous, {"format": "pt"})


@pytest.mark.parametrize("damaged", [(), (3,), (3, 2), (1, 2, 3)])
def test_undamaged_checkpoints_newest_first(tmp_path, damaged):
    for step in (1, 2, 3):
        save(tmp_path, {"model": {"a": torch.ones(2)}, "optimizer": {}}, {"step": step})
    for step in damaged:
        (tmp_path / step_dir(step) / "state.json").write_text("{}")
    errors = []
    found = [step_of(path) for path in whole_checkpoints(tmp_path, errors)]
    assert found == [step for step in (3, 2, 1) if step not in damaged] and len(errors) == len(damaged)
