"""Links and pipes in a run folder are refused before anything is written."""

import os
import shutil
import signal

import pytest

from configs.errors import CheckpointError
from model.checkpoint.load import load_run
from tests.faults.harness import child, exit_code, overridden, train
from tests.faults.test_damage import NEWEST, copied
from training.monitor.metrics import rows

FILES = ["config.yaml", "tokenizer.json", "metrics.jsonl", "samples.jsonl", "environment.txt", "curve.png"]
FILES += ["lock", "owner.json", "checkpoints/latest", "checkpoints/best"]
FOLDERS = ["checkpoints", f"checkpoints/{NEWEST}", f"checkpoints/{NEWEST}.trash"]


def listed(folder):
    """{path: contents or link target} of everything below the folder."""
    found = {path.relative_to(folder): path for path in folder.rglob("*")}
    return {
        name: os.readlink(path) if path.is_symlink() else path.read_bytes() if path.is_file() else None
        for name, path in found.items()
    }


def to_outside(path, outside):
    (outside / "file").write_text("precious")
    path.unlink(missing_ok=True)
    path.symlink_to(outside / "file")


def to_nothing(path, outside):
    path.unlink(missing_ok=True)
    path.symlink_to(outside / "new")


def to_a_device(path, outside):
    path.unlink(missing_ok=True)
    path.symlink_to("/dev/zero")


def pipe(path, outside):
    path.unlink(missing_ok=True)
    os.mkfifo(path)


def moved(path, outside):
    path.mkdir(exist_ok=True)
    path.rename(outside / "moved")
    path.symlink_to(outside / "moved")


def end_if_blocked():
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(60)


CASES = [(change, name) for change in (to_outside, to_nothing, to_a_device, pipe) for name in FILES]


@pytest.mark.parametrize(
    ("change", "name"),
    [*CASES, *((moved, name) for name in FOLDERS)],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_links_and_pipes_are_refused(tmp_path, change, name):
    folder, outside = copied(tmp_path).parent, tmp_path / "outside"
    outside.mkdir()
    change(folder / name, outside)
    before = listed(tmp_path)
    pid = child(tmp_path, overridden("resume=true", "train.steps=6"), end_if_blocked)
    code, output = exit_code(pid), (tmp_path / "output.txt").read_text()
    assert code == 4 and output.count("error: ") == 1 and "Traceback" not in output, output
    assert f"runs/run/{name} is a link or not a regular file" in output
    (tmp_path / "output.txt").unlink()
    assert listed(tmp_path) == before, "nothing was written, inside or outside"
    with pytest.raises(CheckpointError, match=f"{name} is a link or not a regular file"):
        load_run(folder)


def test_links_that_the_user_or_wandb_makes(tmp_path):
    """The run folder itself may be a link, and wandb keeps links in its own folder."""
    folder = copied(tmp_path).parent
    (folder / "wandb").mkdir()
    (folder / "wandb/latest-run").symlink_to("nowhere")
    shutil.move(folder, tmp_path / "disk")
    folder.symlink_to(tmp_path / "disk")
    code, output = train(tmp_path, overridden("resume=true"))
    assert code == 0, output
    assert load_run(folder).step == 4


@pytest.mark.parametrize("pointer", [b"\xff\xfe", b"x" * 5000, b"\0", b""])
def test_a_bad_best_pointer(tmp_path, pointer):
    folder = copied(tmp_path).parent
    (folder / "checkpoints/best").write_bytes(pointer)
    code, output = train(tmp_path, overridden("resume=true", "train.steps=6"))
    assert (
        code == 4 and output.count("error: ") == 1 and "checkpoints/best" in output and len(output) < 300
    ), output


BAD_ROWS = [
    b"[" * 200_000,
    b'{"step": 1, "loss": "x", "seconds": "y", "tokens": []}',
    b'{"step": 1, "loss": 2}',
]
BAD_ROWS += [b'{"step": 1, "seconds": ' + b"9" * 4000 + b"}", b"\xff\0", b'{"step": 2, "lo']


@pytest.mark.parametrize("row", BAD_ROWS, ids=lambda row: repr(row[:40]))
def test_bad_rows_are_ignored(tmp_path, row):
    path = copied(tmp_path).with_name("metrics.jsonl")
    path.write_bytes(row + b"\n" + path.read_bytes())
    code, output = train(tmp_path, overridden("resume=true", "train.steps=6"))
    assert code == 0, output
    assert all(isinstance(value, int | float) for row in rows(path) for value in row.values())
