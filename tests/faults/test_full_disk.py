"""A full disk costs a run at most its last checkpoint: what it has saved stays whole."""

import os
import re
import resource
import shutil
from functools import partial
from types import SimpleNamespace

import pytest

from model import weights
from tests.faults.harness import (
    HOME,
    RUN,
    assert_equal,
    assert_resumes,
    output_of,
    resume,
    run,
    valid_steps,
)
from tests.faults.shim import Shim, full, recorded
from tests.parts import thin
from tests.training.runs import tensors

TRIALS = 75  # over all operations
LONG = ["train.steps=9", "checkpoint.keep=20", "eval.every=null", "sample.every=null"]


@pytest.mark.parametrize("number", thin(range(TRIALS), [20, 60]))
def test_once_at_every_other_operation(number, tmp_path):
    """At most a warning, and the same weights; or one sentence, and a run that can be resumed."""
    at = 1 + number * len(recorded("new").log) // TRIALS
    code, output = run(tmp_path, act=Shim(full, at))
    assert "Traceback" not in output
    if code == 0:
        assert tensors(tmp_path / RUN) == tensors(HOME / RUN)
    else:  # before the first step, or at the last checkpoint
        assert code == 6, output
        [error] = re.findall("error: .*", output)
        assert "no space left on device" in error
        valid_steps(tmp_path / RUN)
    if code or "warning: " not in output:
        assert_resumes(tmp_path)


@pytest.mark.faults
@pytest.mark.parametrize("at", range(1, 150, 6))
def test_from_an_operation_on(at, tmp_path):
    """Three checkpoints fail, then the run ends."""
    output = output_of(tmp_path, *LONG, act=Shim(full, at, always=True), code=6)
    assert "Traceback" not in output
    saved = valid_steps(tmp_path / RUN)
    assert saved == list(range(1, len(saved) + 1))
    assert output.count("a checkpoint could not be saved") <= 2
    output = resume(tmp_path, *LONG)
    assert not saved or f"resuming from step {len(saved)}" in output


def limit_files(*sizes):
    """The largest size of a file that may be written, from the first file of tensors on, from the
    second, and so on. It is what safetensors sees of a full disk."""
    real = weights.save_file
    left = list(sizes)

    def save_file(*arguments):
        if left:
            resource.setrlimit(resource.RLIMIT_FSIZE, (left.pop(0), resource.RLIM_INFINITY))
        real(*arguments)

    weights.save_file = save_file


@pytest.mark.parametrize("file", ["model", "optimizer"])
def test_while_tensors_are_written(file, tmp_path):
    """Of the first checkpoint; the second succeeds."""
    free = resource.RLIM_INFINITY
    sizes = [10_000, free] if file == "model" else [free, 10_000, free]
    output = output_of(tmp_path, act=partial(limit_files, *sizes))
    [warning] = re.findall("warning: .*", output)
    assert re.search(rf"step-00000001.draft/{file}.safetensors: .*File too large", warning)
    assert_equal(tmp_path / RUN)


def test_free_space_is_checked_before_the_first_step(tmp_path):
    def act():
        shutil.disk_usage = lambda path: SimpleNamespace(free=1000)

    output = output_of(tmp_path, act=act, code=6)
    assert re.search("error: the checkpoints .* need .* kB and the disk has 1.0 kB", output)
    assert not (tmp_path / RUN).exists()


def test_a_run_whose_folder_is_moved_ends(tmp_path):
    """It writes no second folder, which would lack the settings."""

    def move(name, path, argument):
        if name == "mkdir" and path.endswith("step-00000002.draft"):
            os.rename(RUN, "moved")

    output = output_of(tmp_path, *LONG, act=Shim(move, always=True), code=6)
    assert output.count("warning: a checkpoint could not be saved") == 2
    assert not (tmp_path / RUN).exists()
    assert valid_steps(tmp_path / "moved") == [1]
