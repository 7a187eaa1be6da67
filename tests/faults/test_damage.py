"""Damaged files are reported and never used; a folder has one writer; no NaN is saved."""

import os
import random
import shutil
import signal
import sys
from functools import partial
from itertools import product

import pytest

from configs.errors import CheckpointError
from model.checkpoint import verify
from model.runs import list_checkpoints
from tests.faults.harness import (
    HOME,
    OVERRIDES,
    RUN,
    assert_resumes,
    end,
    output_of,
    run,
    start,
    valid_steps,
)
from tests.faults.shim import Shim, pause, spoil
from tests.parts import refused
from tests.training.runs import files

FILES = ["model.safetensors", "optimizer.safetensors", "state.json", "manifest.json"]


def copy_run(cwd):
    """A copy of the uninterrupted run, to be damaged."""
    return shutil.copytree(HOME / RUN, cwd / RUN)


def flip_bit(data, draw):
    at = draw.randrange(len(data))
    return data[:at] + bytes([data[at] ^ 1 << draw.randrange(8)]) + data[at + 1 :]


def truncate(data, draw):
    return data[: draw.randrange(len(data))]


def append(data, draw):
    return data + bytes(draw.randrange(1, 9))


@pytest.mark.parametrize("name", FILES)
def test_damage_is_detected(name, tmp_path):
    path = list_checkpoints(copy_run(tmp_path))[0] / name
    whole = path.read_bytes()
    for change, seed in product([flip_bit, truncate, append], range(50)):
        path.write_bytes(change(whole, random.Random(seed)))
        with refused(path.parent.name, CheckpointError):
            verify(path.parent)
    path.unlink()
    with refused(name, CheckpointError):
        verify(path.parent)


def test_no_checkpoint_is_undamaged(tmp_path):
    folder = copy_run(tmp_path)
    for path in folder.glob("checkpoints/step-*/model.safetensors"):
        path.write_bytes(bytes(100))
    before = files(folder)
    output = output_of(tmp_path, "resume=true", code=4)
    assert "error: no checkpoint of runs/run is undamaged" in output
    assert output.count("model.safetensors is damaged") == 2
    assert files(folder) == before


@pytest.mark.faults
@pytest.mark.parametrize("share", range(0, 100, 5))
@pytest.mark.parametrize("zeros", [True, False])
@pytest.mark.parametrize("name", ["config.yaml", "tokenizer.json"])
def test_other_files_of_a_run(name, zeros, share, tmp_path):
    """Cut off, or overwritten with zeros from there on. A run that goes on writes its tokenizer again."""
    path = copy_run(tmp_path) / name
    data = path.read_bytes()
    kept = len(data) * share // 100
    path.write_bytes(data[:kept] + bytes(len(data) - kept) * zeros)
    code, output = run(tmp_path, "resume=true", "train.steps=5")
    if name == "config.yaml" and kept > data.index(b"overrides:") and not zeros:
        return  # nothing depends on those that the run was started with
    if name == "tokenizer.json":
        assert code == 0 and path.read_bytes() == data, output
        return
    assert code == 4, output
    assert output.count("error: ") == 1
    assert f"runs/run/{name}" in output


def test_a_nan_is_never_saved(tmp_path):
    """In the third of four steps, of two micro-batches each."""
    output = output_of(tmp_path, act=partial(spoil, "nan", 5), code=5)
    assert "the loss is not finite (nan); the weights were not updated" in output
    assert valid_steps(tmp_path / RUN)[-1] < 3
    assert_resumes(tmp_path)


def test_one_writer(tmp_path):
    """A second process is refused, and a killed one leaves no lock behind."""
    first = start(tmp_path, OVERRIDES, Shim(pause, 60), output="first")
    os.waitpid(first, os.WUNTRACED)
    before = files(tmp_path / RUN)
    output = output_of(tmp_path, "resume=true", code=8)
    assert "runs/run is in use by another process" in output
    assert files(tmp_path / RUN) == before
    os.kill(first, signal.SIGKILL)
    assert end(first) == -signal.SIGKILL
    assert_resumes(tmp_path)


def test_a_lost_terminal(tmp_path):
    """Nobody reads the output any more: the run ends, and can be resumed."""

    def lose():
        reads, writes = os.pipe()
        os.close(reads)
        sys.stdout = os.fdopen(writes, "w")

    code, output = run(tmp_path, act=lose)
    assert code != 0
    assert "Traceback" not in output
    assert_resumes(tmp_path)
