"""Links and pipes in a run folder are refused before anything is written."""

import os
import shutil

import pytest

from configs.errors import CheckpointError
from model.checkpoint.load import load_run
from tests.faults.harness import NEWEST, overridden, train
from training.monitor.metrics import rows

FILES = [
    "config.yaml", "tokenizer.json", "metrics.jsonl", "samples.jsonl", "environment.txt", "curve.png", "lock",
    "owner.json", "checkpoints/latest", "checkpoints/best", f"checkpoints/{NEWEST}/model.safetensors",
]  # fmt: skip
FOLDERS = ["checkpoints", f"checkpoints/{NEWEST}", f"checkpoints/{NEWEST}.trash"]


def contents(folder):
    """{path: contents or link target} of everything below the folder."""
    return {
        path: os.readlink(path) if path.is_symlink() else path.read_bytes() if path.is_file() else None
        for path in folder.rglob("*")
    }


TARGETS = ["outside/file", "outside/nothing", "/dev/zero", None]  # None: a pipe
CASES = [(name, target) for name in FILES for target in TARGETS]
CASES += [(name, "outside") for name in FOLDERS]


def replace(path, target, cwd):
    """Put a link or, without a target, a pipe at this path; returns what is below cwd then."""
    outside = cwd / "outside"
    if path.is_dir():
        path.rename(outside)
    else:
        path.unlink(missing_ok=True)
        outside.mkdir()
        (outside / "file").write_text("precious")
    if target:
        path.symlink_to(cwd / target)
    else:
        os.mkfifo(path)  # opening it would block for ever
    return contents(cwd)


@pytest.mark.parametrize(("name", "target"), CASES)
def test_links_and_pipes_are_refused(tmp_path, folder, resume, name, target):
    before = replace(folder / name, target, tmp_path)
    code, output = resume("train.steps=6")
    assert code == 4 and output == f"error: runs/run/{name} is a link or not a regular file; remove it\n"
    assert contents(tmp_path) == before, "nothing was written, inside or outside"
    with pytest.raises(CheckpointError, match=f"{name} is a link or not a regular file"):
        load_run(folder)


@pytest.mark.parametrize("target", ["outside/file", None])
def test_a_process_refuses_them(tmp_path, folder, target):
    before = replace(folder / "metrics.jsonl", target, tmp_path)
    code, output = train(tmp_path, overridden("resume=true"))
    (tmp_path / "output.txt").unlink()
    assert code == 4 and output.startswith("error: ") and contents(tmp_path) == before


def test_links_that_the_user_or_wandb_makes(tmp_path, folder, resume):
    """The run folder itself may be a link, and wandb keeps links in its own folder."""
    (folder / "wandb").mkdir()
    (folder / "wandb/latest-run").symlink_to("nowhere")
    shutil.move(folder, tmp_path / "disk")
    folder.symlink_to(tmp_path / "disk")
    code, output = resume()
    assert code == 0, output
    assert load_run(folder).step == 4


@pytest.mark.parametrize("pointer", [b"\xff\xfe", b"x" * 5000, b"\0", b""])
def test_a_bad_best_pointer(folder, resume, pointer):
    (folder / "checkpoints/best").write_bytes(pointer)
    code, output = resume("train.steps=6")
    assert code == 4 and output.startswith("error: ") and "checkpoints/best" in output and len(output) < 300


BAD_ROWS = [b"[" * 200_000, b'{"step": 1, "loss": "x", "seconds": "y", "tokens": []}', b"\xff\0"]
BAD_ROWS += [b'{"step": 1, "loss": 2}', b'{"step": 1, "seconds": ' + b"9" * 4000 + b"}", b'{"step": 2, "lo']


def test_bad_rows_are_ignored(folder, resume):
    path = folder / "metrics.jsonl"
    path.write_bytes(b"\n".join([*BAD_ROWS, path.read_bytes()]))
    code, output = resume("train.steps=6")
    assert code == 0, output
    assert max(row["step"] for row in rows(path)) == 6
    assert all(isinstance(value, int | float) for row in rows(path) for value in row.values())
