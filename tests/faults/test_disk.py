"""A disk that is full, read-only or gone; and one that loses unsynced data in a power failure."""

import json
import os
import random
import re
import shutil
from itertools import product
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file
from safetensors.torch import save as safetensors_of

from configs.errors import CheckpointError
from data import disk
from model.checkpoint.files import step_dir, step_of, verify, whole_checkpoints
from model.checkpoint.save import prune, save
from tests.faults.harness import STEPS, equal, overridden, run_trials, train, verified_steps
from tests.faults.shim import HANDLES, NAMED, Shim, full, log, operations
from training.checkpointer import AsyncCheckpointer


def full_at(operation, cwd):
    """One refused operation: at most a warning, and the run comes to the same end."""
    code, output = train(cwd, overridden(), Shim(operation, full, below="runs/run/"))
    folder = cwd / "runs/run"
    assert "Traceback" not in output, output
    assert code == 0 or (code == 6 and output.count("error: ") == 1), output
    verified_steps(folder)
    if code == 6:  # refused before its first step, or at its last checkpoint
        assert "no space left on device" in output.lower(), output
        shutil.rmtree(folder, ignore_errors=not verified_steps(folder))
    assert train(cwd, overridden("resume=auto"))[0] == 0
    equal(folder)


def test_smoke(tmp_path):
    n = len(operations(tmp_path, overridden()))
    run_trials(full_at, random.Random(3).sample(range(20, n), 5), tmp_path)


@pytest.mark.faults
def test_full_at_every_other_operation(tmp_path):
    n = len(operations(tmp_path, overridden()))
    run_trials(full_at, range(1, n + 1, 2), tmp_path)


NO_EVAL = ["eval.every=null", "sample.every=null"]


def full_from(operation, cwd):
    """A disk that stays full: three checkpoints fail and the run ends; earlier ones are untouched."""
    overrides = overridden("train.steps=9", "checkpoint.keep=20", *NO_EVAL)
    code, output = train(cwd, overrides, Shim(operation, full, below="runs/run/", always=True))
    assert code == 6 and "Traceback" not in output, output
    if kept := verified_steps(cwd / "runs/run"):
        assert output.count("a checkpoint could not be saved") == 1, "one warning"
        assert kept == list(range(1, len(kept) + 1))
        code, output = train(cwd, [*overrides, "resume=auto"])
        assert code == 0 and f"resuming runs/run from step {kept[-1]}" in output, output


@pytest.mark.faults
def test_it_stays_full(tmp_path):
    run_trials(full_from, range(60, 200, 7), tmp_path)


def test_a_folder_that_disappears(tmp_path):
    """It is renamed when its second checkpoint appears."""

    def move(name, real, args):
        if name == "rename" and str(args[2]).endswith("00000002"):
            os.rename(Path(args[0]).parents[1], tmp_path / "elsewhere")

    act = Shim(1, move, below="runs/run/", always=True)
    code, output = train(tmp_path, overridden("train.steps=12", *NO_EVAL), act)
    assert code == 6 and output.count("error: 3 checkpoints in a row could not be saved") == 1, output
    assert output.count("warning: a checkpoint could not be saved") == 1
    assert output.count("metrics.jsonl cannot be written") == 1
    assert not (tmp_path / "runs/run").exists() and verified_steps(tmp_path / "elsewhere") == [1]


def test_free_space_is_checked_before_the_first_step(tmp_path):
    def act():
        shutil.disk_usage = lambda path: SimpleNamespace(free=1000)

    code, output = train(tmp_path, overridden(), act)
    assert code == 6 and not (tmp_path / "runs").exists()
    assert re.search(r"error: the checkpoints .* need \d+ KiB and .* has 1000 bytes left", output), output


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
            names = renamed(names, path, rest[0])
            folders = set(renamed(dict.fromkeys(folders), path, rest[0]))
            kept = {p: file for p, file in durable.items() if p == path}
            durable = kept | renamed(durable, path + "/", rest[0] + "/")
        elif name == "unlink":
            names.pop(path, None)
        elif name == "rmdir":
            folders.discard(path)
    files = names if keeps_names else durable
    return {path: file[1] for path, file in files.items()}, folders if keeps_names else durable_folders


def renamed(entries, old, new):
    """The entries with the path `old`, and all below it, under a new one."""
    old, new = old.rstrip("/"), new.rstrip("/")
    return {new + p[len(old) :] if f"{p}/".startswith(f"{old}/") else p: e for p, e in entries.items()}


def newest_after_power_loss(log, cwd):
    """The newest checkpoint at the end; after each prefix of the log, all visible ones are undamaged."""
    newest = 0
    for n, keeps_names in product(range(len(log) + 1), (True, False)):
        files, folders = after_power_loss(log[:n], keeps_names)
        steps = [Path(folder) for folder in folders if re.fullmatch(r"step-\d{8}", Path(folder).name)]
        for step in steps:
            shutil.rmtree(cwd / step.name, ignore_errors=True)
            (cwd / step.name).mkdir()
            for path, data in files.items():
                if Path(path).parent == step:
                    (cwd / step.name / Path(path).name).write_bytes(data)
            verify(cwd / step.name)
        if not keeps_names:
            before, newest = newest, max(map(step_of, steps), default=0)
            assert newest >= before, "the newest went back"
    return newest


@pytest.fixture
def save_log(tmp_path, monkeypatch):
    """The disk operations of saving three checkpoints."""
    checkpoints = tmp_path / "runs/run/checkpoints"
    checkpoints.parent.mkdir(parents=True)
    for name in ("open", *NAMED, *HANDLES):
        monkeypatch.setattr(os, name, getattr(os, name))  # restored after the test
    Shim(1, log(tmp_path / "log.jsonl"), always=True)()
    for step in (1, 2, 3):
        save_small(checkpoints, step)
    return [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]


def save_small(checkpoints, step):
    tensors = {"model": {"a": torch.arange(9.0)}, "optimizer": {"a.m": torch.ones(9) * step}}
    save(checkpoints, tensors, {"step": step})


def test_power_may_fail_at_any_operation(save_log, tmp_path):
    assert newest_after_power_loss(save_log, tmp_path) == 3


@pytest.mark.parametrize("left_out", ["files", "their folder", "before the rename"])
def test_the_simulation_detects_missing_syncs(save_log, tmp_path, left_out):
    if left_out == "files":
        log = [entry for entry in save_log if entry[0] != "fsync" or not Path(entry[1]).suffix]
    elif left_out == "their folder":
        log = [entry for entry in save_log if entry[0] != "fsync" or not entry[1].endswith(".draft")]
    else:
        log = sorted(save_log, key=lambda entry: entry[0] == "fsync")
    with pytest.raises((CheckpointError, AssertionError)):
        assert newest_after_power_loss(log, tmp_path) == 3


def test_old_checkpoints_are_deleted_after_the_new_one_is_complete(tmp_path, monkeypatch):
    seen = []

    def delete(path):
        seen.append((step_of(path), verified_steps(tmp_path)))

    monkeypatch.setattr(disk, "atomic_rmtree", delete)
    for step in range(1, 6):
        save_small(tmp_path / "checkpoints", step)
        prune(tmp_path / "checkpoints", 2)
    assert seen and all(len([step for step in steps if step > deleted]) >= 2 for deleted, steps in seen)


def test_a_copy_is_saved(tmp_path):
    """Weights may change while the thread writes them."""
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
    assert files[0] == files[1] == safetensors_of(contiguous, {"format": "pt"})


@pytest.mark.parametrize("damaged", [(), (3,), (3, 2), (1, 2, 3)])
def test_undamaged_checkpoints_newest_first(tmp_path, damaged):
    for step in (1, 2, 3):
        save_small(tmp_path, step)
    for step in damaged:
        (tmp_path / step_dir(step) / "state.json").write_text("{}")
    errors = []
    steps = [step_of(path) for path in whole_checkpoints(tmp_path, errors)]
    assert steps == [step for step in (3, 2, 1) if step not in damaged] and len(errors) == len(damaged)
