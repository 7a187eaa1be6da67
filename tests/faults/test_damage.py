"""Damaged files are reported and never used; a folder has one writer; no NaN is saved."""

import os
import random
import signal
import sys

import pytest
import torch

import train
from configs.errors import CheckpointError
from model.checkpoint import verify
from tests.faults.harness import (
    NEWEST,
    RUN,
    STEPS,
    assert_equal,
    copy_run,
    end,
    overridden,
    resume,
    run,
    start,
    verified_steps,
)
from tests.faults.shim import Shim

FILES = ["model.safetensors", "optimizer.safetensors", "state.json", "manifest.json"]


# ---- damages: (the bytes of a file, random draws) -> other bytes


def flip_bit(data, draw):
    at = draw.randrange(len(data))
    return data[:at] + bytes([data[at] ^ 1 << draw.randrange(8)]) + data[at + 1 :]


def truncate(data, draw):
    return data[: draw.randrange(len(data))]


def lose_block(data, draw):
    """A block that the file system has lost reads as zeros."""
    begin = draw.randrange(len(data) - 1)
    size = min(len(data) - begin, draw.choice([64, 512, 4096]))
    return data[:begin] + bytes(size) + data[begin + size :]


def append(data, draw):
    return data + bytes(draw.randrange(1, 9))


def damage(path, change, seed):
    if change is None:
        path.unlink()
        return
    draw = random.Random(seed)
    before = path.read_bytes()
    after = before
    while after == before:
        after = change(before, draw)
    path.write_bytes(after)


DAMAGES = [flip_bit, truncate, lose_block, append, None]  # None: it is missing


# ---- checkpoints


@pytest.mark.parametrize("change", DAMAGES)
@pytest.mark.parametrize("name", FILES)
def test_it_is_detected(name, change, tmp_path):
    path = copy_run(tmp_path) / "checkpoints" / NEWEST / name
    whole = path.read_bytes()
    for seed in range(50):
        path.write_bytes(whole)
        damage(path, change, seed)
        with pytest.raises(CheckpointError, match=NEWEST):
            verify(path.parent)


def test_no_checkpoint_is_undamaged(tmp_path):
    folder = copy_run(tmp_path)
    for path in folder.glob("checkpoints/step-*/model.safetensors"):
        damage(path, flip_bit, 0)
    before = contents(folder)
    code, output = run(tmp_path, "resume=true")
    assert code == 4, output
    assert "error: no checkpoint of runs/run is undamaged" in output
    assert output.count("model.safetensors is damaged") == 2
    assert contents(folder) == before


def contents(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.faults
@pytest.mark.parametrize("share", range(0, 100, 5))
@pytest.mark.parametrize("zeros", [True, False])
@pytest.mark.parametrize("name", ["config.yaml", "tokenizer.json"])
def test_other_files_of_a_run(name, zeros, share, tmp_path):
    """Cut off, or overwritten with zeros from there on. A tokenizer is that of the cached text."""
    path = copy_run(tmp_path) / name
    data = path.read_bytes()
    kept = len(data) * share // 100
    path.write_bytes(data[:kept] + bytes(len(data) - kept) * zeros)
    code, output = run(tmp_path, "resume=true")
    if name == "config.yaml" and kept > data.index(b"overrides:") and not zeros:
        return  # nothing depends on those that the run was started with
    if name == "tokenizer.json":
        assert code == 0 and path.read_bytes() == data, output
        return
    assert code == 4, output
    assert output.count("error: ") == 1
    assert f"runs/run/{name}" in output


# ---- runs


def spoil_losses():
    """Those of training steps are NaN once there is a checkpoint."""
    real = train.LossModule.forward

    def forward(module, *arguments):
        losses = real(module, *arguments)
        is_spoiled = module.training and any(RUN.glob("checkpoints/step-????????"))
        return {"loss": losses["loss"] * torch.nan} if is_spoiled else losses

    train.LossModule.forward = forward


def test_a_nan_is_never_saved(tmp_path):
    code, output = run(tmp_path, act=spoil_losses)
    assert code == 5, output
    assert "the loss is not finite (nan); the weights were not updated" in output
    assert verified_steps(tmp_path / RUN)[-1] < STEPS
    resume(tmp_path)
    assert_equal(tmp_path / RUN)


def test_one_writer(tmp_path):
    """A second process is refused, and a killed one leaves no lock behind."""

    def pause(name, path, argument):
        os.kill(os.getpid(), signal.SIGSTOP)

    first = start(tmp_path, overridden(), Shim(pause, 60), output="first")
    os.waitpid(first, os.WUNTRACED)
    before = contents(tmp_path / RUN)
    code, output = run(tmp_path, "resume=true")
    assert code == 8, output
    assert "runs/run is in use by another process" in output
    assert contents(tmp_path / RUN) == before
    os.kill(first, signal.SIGKILL)
    assert end(first) == -signal.SIGKILL
    resume(tmp_path)
    assert_equal(tmp_path / RUN)


def test_a_lost_terminal(tmp_path):
    """Nobody reads the output any more: the run ends, and can be resumed."""

    def lose():
        reads, writes = os.pipe()
        os.close(reads)
        sys.stdout = os.fdopen(writes, "w")

    code, output = run(tmp_path, act=lose)
    assert code != 0
    assert "Traceback" not in output
    resume(tmp_path)
    assert_equal(tmp_path / RUN)
