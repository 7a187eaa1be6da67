"""What a run keeps lies in its folder: links that lead out of it, and pipes at which one would wait, are
refused before anything is written."""

import os
import shutil
import signal

import pytest

from configs.errors import CheckpointError
from model.checkpoint.load import load_run
from tests.faults.harness import child, exit_code, train, overridden
from tests.faults.test_damage import NEWEST, copied
from training.monitor.metrics import rows

FILES = ["config.yaml", "tokenizer.json", "metrics.jsonl", "samples.jsonl", "environment.txt", "curve.png"]
FILES += ["lock", "owner.json", "checkpoints/latest", "checkpoints/best"]
FOLDERS = ["checkpoints", f"checkpoints/{NEWEST}", f"checkpoints/{NEWEST}.trash"]


def listed(folder):
    """All below it, links as links, with what files hold."""
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


def impatient():
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(60)


CASES = [(change, name) for change in (to_outside, to_nothing, to_a_device, pipe) for name in FILES]


@pytest.mark.parametrize(
    ("change", "name"),
    [*CASES, *((moved, name) for name in FOLDERS)],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_nothing_leads_out(tmp_path, change, name):
    folder, outside = copied(tmp_path).parent, tmp_path / "outside"
    outside.mkdir()
    change(folder / name, outside)
    before = listed(tmp_path)
    pid = child(tmp_path, overridden("resume=true", "train.steps=6"), impatient)
    code, output = exit_code(pid), (tmp_path / "output.txt").read_text()
    assert code == 4 and output.count("error: ") == 1 and "Traceback" not in output, output
    assert f"runs/run/{name} is a link or no plain file" in output
    (tmp_path / "output.txt").unlink()
    assert listed(tmp_path) == before, "nothing was written, here or there"
    with pytest.raises(CheckpointError, match=f"{name} is a link or no plain file"):
        load_run(folder)


def test_a_folder_elsewhere_is_the_users_own_choice(tmp_path):
    """The folder of a run may itself be a link, and wandb keeps links below its own."""
    folder = copied(tmp_path).parent
    (folder / "wandb").mkdir()
    (folder / "wandb/latest-run").symlink_to("nowhere")
    shutil.move(folder, tmp_path / "disk")
    folder.symlink_to(tmp_path / "disk")
    code, output = train(tmp_path, overridden("resume=true"))
    assert code == 0, output
    assert load_run(folder).step == 4


@pytest.mark.parametrize("pointer", [b"\xff\xfe", b"x" * 5000, b"\0", b""])
def test_a_best_that_is_none(tmp_path, pointer):
    folder = copied(tmp_path).parent
    (folder / "checkpoints/best").write_bytes(pointer)
    code, output = train(tmp_path, overridden("resume=true", "train.steps=6"))
    assert (
        code == 4 and output.count("error: ") == 1 and "checkpoints/best" in output and len(output) < 300
    ), output


ODD = [b"[" * 200_000, b'{"step": 1, "loss": "x", "seconds": "y", "tokens": []}', b'{"step": 1, "loss": 2}']
ODD += [b'{"step": 1, "seconds": ' + b"9" * 4000 + b"}", b"\xff\0", b'{"step": 2, "lo']


@pytest.mark.parametrize("row", ODD, ids=lambda row: repr(row[:40]))
def test_rows_that_are_none_count_for_nothing(tmp_path, row):
    path = copied(tmp_path).with_name("metrics.jsonl")
    path.write_bytes(row + b"\n" + path.read_bytes())
    code, output = train(tmp_path, overridden("resume=true", "train.steps=6"))
    assert code == 0, output
    assert all(isinstance(value, int | float) for row in rows(path) for value in row.values())
