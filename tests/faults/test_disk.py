"""A disk that is full or gone, and what is written to it."""

import errno
import os
import random
import re
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file
from safetensors.torch import save as safetensors_of

from data import disk
from model.checkpoint.files import step_dir, step_of, verify, whole_checkpoints
from model.checkpoint.load import load_run
from model.checkpoint.save import draft_dir, prune, save
from tests.faults.harness import (
    STEPS,
    equal,
    overridden,
    reference,
    run_trials,
    train,
    verified_steps,
)
from tests.faults.shim import Shim, full, operations
from tests.faults.test_links import contents
from training import run_folder
from training.checkpointer import AsyncCheckpointer
from training.monitor.metrics import JsonlLog, read_rows


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
    assert code == 6 and output.count("error: 3 checkpoints in a row could not be saved") == 1, (
        output
    )
    assert output.count("warning: a checkpoint could not be saved") == 1
    assert output.count("metrics.jsonl cannot be written") == 1
    assert not (tmp_path / "runs/run").exists() and verified_steps(tmp_path / "elsewhere") == [1]


def files_in(folder):
    return {path.relative_to(folder): data for path, data in contents(folder).items()}


MOMENTS = [("open", "metrics.jsonl"), ("mkdir", "step-00000002.draft"), ("fsync", "samples.jsonl")]


@pytest.mark.parametrize("moment", MOMENTS, ids=str)
def test_another_run_takes_the_name(tmp_path, moment):
    """The folder is removed and made anew by another run, where the first one changes nothing."""
    run, other = tmp_path / "runs/run", Path(shutil.copytree(reference(), tmp_path / "other"))

    def take(name, real, args):
        if (
            (name, Path(args[0]).name) == moment
            and (run / "checkpoints").exists()
            and other.exists()
        ):
            run.rename(tmp_path / "removed")
            other.rename(run)

    overrides = overridden("train.steps=12", "seed=1")
    code, output = train(tmp_path, overrides, Shim(1, take, below="runs/run/", always=True))
    assert code == 8 and output.count("error: ") == 1 and "Traceback" not in output, output
    assert re.search(
        "error: runs/run was deleted and is now used by process .*; this run has ended", output
    )
    assert files_in(run) == files_in(reference())


@pytest.mark.parametrize("moment", MOMENTS, ids=str)
def test_a_folder_that_is_emptied(tmp_path, moment):
    """What a run needs besides its weights is written again, so that it can be resumed."""
    run, removed = tmp_path / "runs/run", tmp_path / "removed"

    def empty(name, real, args):
        happens = (name, Path(args[0]).name) == moment and (run / "checkpoints/latest").exists()
        if happens and not removed.exists():
            run.rename(removed)
            run.mkdir()

    code, output = train(
        tmp_path, overridden(*NO_EVAL), Shim(1, empty, below="runs/run/", always=True)
    )
    assert code == 0 and "Traceback" not in output, output
    assert load_run(run).step == STEPS
    assert train(tmp_path, ["name=run", "resume=true", "train.steps=5"])[0] == 0


def plain_files(checkpoints):
    for step in range(3):
        (checkpoints / step_dir(step)).with_suffix(".trash").touch()
        (checkpoints / step_dir(step)).touch()


UNDELETABLE = [
    plain_files,
    lambda checkpoints: (checkpoints / "best").write_text("../../elsewhere"),
]


@pytest.mark.parametrize("spoil", UNDELETABLE, ids=["files", "best"])
def test_an_old_checkpoint_that_cannot_be_deleted(tmp_path, capsys, spoil):
    """It is a warning and no failure: the new one has been saved."""
    saver = AsyncCheckpointer(tmp_path / "checkpoints", 1)
    (tmp_path / "checkpoints").mkdir()
    spoil(tmp_path / "checkpoints")
    for step in range(3, 9):
        saver.save({"step": step}, lambda: {"model": {}, "optimizer": {}})
    saver.poll(wait=True)
    saver.close()
    errors = capsys.readouterr().err
    assert (
        errors.count("warning: ") == errors.count("an old checkpoint could not be deleted (") == 1
    ), errors
    assert saver.failures == 0 and whole_steps(tmp_path / "checkpoints")[0] == 8


@pytest.mark.parametrize("lost", [None, 0, 4])
def test_what_another_process_wrote_and_is_lost(tmp_path, lost):
    """A file system of several machines may lose a part without an error."""
    draft = draft_dir(tmp_path, 1)
    draft.mkdir()
    parts = [(place, b"part") for place in (4, 0)]
    paths = [draft / f"{name}.safetensors" for name in ("model", "optimizer")]
    total = sum(disk.write_parts(path, 8, [part]) for path in paths for part in parts)
    if lost is None:
        save(tmp_path, {}, {"step": 1}, written=(total, 0))
        verify(tmp_path / step_dir(1))
    else:
        disk.write_parts(paths[1], 8, [(lost, bytes(4))])
        with pytest.raises(OSError, match="what another process wrote is not there"):
            save(tmp_path, {}, {"step": 1}, written=(total, 0))
        assert not list(tmp_path.iterdir())


def test_another_run_is_faster(tmp_path):
    """Of two runs that begin at once with resume=auto, one makes the folder; the other leaves it alone."""
    folder = tmp_path / "runs/run"

    def act():
        run_folder.check_disk_space = lambda *args: shutil.copytree(reference(), folder)

    code, output = train(tmp_path, overridden("resume=auto"), act)
    assert code == 8 and "error: runs/run is in use by process " in output, output
    assert files_in(folder) == files_in(reference())


def test_a_disk_without_locks(tmp_path):
    def act():
        def fail(*args, **rest):
            raise OSError(errno.ENOLCK, "No locks available")

        run_folder.lock_descriptor = fail

    code, output = train(tmp_path, overridden(), act)
    assert (
        code == 0 and output.count("warning: runs/run cannot be locked (No locks available)") == 1
    ), output
    equal(tmp_path / "runs/run")


@pytest.mark.parametrize("put", [os.mkfifo, lambda path: path.symlink_to("precious")])
def test_a_log_that_is_replaced(tmp_path, capsys, put):
    """Its rows go neither through a link nor into a pipe, and are kept until it can be written."""
    path, precious = tmp_path / "metrics.jsonl", tmp_path / "precious"
    log = JsonlLog(path)
    precious.write_text("precious")
    path.unlink()
    put(path)
    log.add({"step": 1})
    assert "metrics.jsonl cannot be written" in capsys.readouterr().err
    assert precious.read_text() == "precious"
    path.unlink()
    log.add({"step": 2})
    assert path.read_bytes() == b'{"step": 1}\n{"step": 2}\n'


@pytest.mark.parametrize("cut, left", [(os.unlink, b""), (0, b""), (15, b'{"step": 1}\n{"s\n')])
def test_a_log_that_is_deleted_or_cut(tmp_path, cut, left):
    path = tmp_path / "metrics.jsonl"
    log = JsonlLog(path)
    log.add({"step": 1})
    log.add({"step": 2})
    cut(path) if callable(cut) else os.truncate(path, cut)
    log.add({"step": 3})
    log.add({"step": 4})
    assert path.read_bytes() == left + b'{"step": 3}\n{"step": 4}\n'


def test_a_row_that_is_cut_off_is_written_again(tmp_path, monkeypatch):
    path, write = tmp_path / "metrics.jsonl", os.write
    log = JsonlLog(path)

    def short(handle, data):
        if len(data) < 10:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(handle, data[: len(data) // 2])

    log.add({"step": 1})
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", short)
        log.add({"step": 2})
        log.add({"step": 3})
        assert path.read_bytes() == b'{"step": 1}\n'
    log.add({"step": 4})
    assert [row["step"] for row in read_rows(path)] == [1, 2, 3, 4] and path.read_text().count(
        "\n"
    ) == 4


def test_no_checkpoint_appears_before_the_rows_of_its_steps(tmp_path):
    """Else a run that is killed before they could be written would resume without them."""

    def act(name, real, args):
        if name == "write" and args[0].endswith("metrics.jsonl"):
            full(name, real, args)

    code, output = train(tmp_path, overridden(), Shim(1, act, below="runs/run/", always=True))
    assert code == 6 and output.count("error: ") == 1, output
    assert not verified_steps(tmp_path / "runs/run")
    assert train(tmp_path, overridden("resume=auto"))[0] == 0
    equal(tmp_path / "runs/run")


def test_free_space_is_checked_before_the_first_step(tmp_path):
    def act():
        shutil.disk_usage = lambda path: SimpleNamespace(free=1000)

    code, output = train(tmp_path, overridden(), act)
    assert code == 6 and not (tmp_path / "runs").exists()
    assert re.search(
        r"error: the checkpoints .* need \d+ KiB and .* has 1000 bytes left", output
    ), output


def save_small(checkpoints, step):
    tensors = {"model": {"a": torch.arange(9.0)}, "optimizer": {"a.m": torch.ones(9) * step}}
    save(checkpoints, tensors, {"step": step})


def test_old_checkpoints_are_deleted_after_the_new_one_is_complete(tmp_path, monkeypatch):
    seen = []

    def delete(path):
        seen.append((step_of(path), verified_steps(tmp_path)))

    monkeypatch.setattr(disk, "atomic_rmtree", delete)
    for step in range(1, 6):
        save_small(tmp_path / "checkpoints", step)
        prune(tmp_path / "checkpoints", 2, step)
    assert seen and all(
        len([step for step in steps if step > deleted]) >= 2 for deleted, steps in seen
    )


def test_checkpoints_of_others_do_not_displace_those_of_the_run(tmp_path):
    """One beyond its steps is set aside; what `latest` names stays, even if a save has failed."""
    (tmp_path / step_dir(99999999)).mkdir()
    for step in (1, 2):
        save_small(tmp_path, step)
        prune(tmp_path, 1, step)
    assert whole_steps(tmp_path) == [2]
    assert (tmp_path / "step-99999999.damaged").is_dir()
    (tmp_path / step_dir(3)).mkdir()
    prune(tmp_path, 1, 4)
    assert whole_steps(tmp_path) == [2]


def whole_steps(checkpoints):
    return [step_of(path) for path in whole_checkpoints(checkpoints, [])]


def test_a_copy_is_saved(tmp_path):
    """Weights may change while the thread writes them."""
    saver, weight = AsyncCheckpointer(tmp_path / "checkpoints", 2), torch.zeros(1000)
    for step in (1, 2, 3):
        weight.fill_(step)
        saver.save({"step": step}, lambda: {"model": {"a": weight}, "optimizer": {}})
        weight.fill_(-1)
    saver.poll(wait=True)
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
    assert steps == [step for step in (3, 2, 1) if step not in damaged] and len(errors) == len(
        damaged
    )
