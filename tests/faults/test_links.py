"""Links and pipes in a run folder are refused before anything is written."""

import os
import shutil
import stat
from pathlib import Path

import pytest

from configs.errors import CheckpointError
from model.checkpoint import files as checkpoint
from model.checkpoint.load import load_run
from tests.faults.commands import COMMANDS, attempt
from tests.faults.harness import NEWEST, copy_run, overridden, run_trials, train
from training.monitor.metrics import rows
from training.monitor.plot import draw_run

FILES = [
    "config.yaml", "tokenizer.json", "metrics.jsonl", "samples.jsonl", "environment.txt", "curve.png", "lock",
    "owner.json", "checkpoints/latest", "checkpoints/best", f"checkpoints/{NEWEST}/model.safetensors",
]  # fmt: skip
FOLDERS = ["checkpoints", f"checkpoints/{NEWEST}", f"checkpoints/{NEWEST}.trash"]


def contents(folder):
    """{path: contents or link target} of everything below the folder."""
    return {
        path: os.readlink(path)
        if path.is_symlink()
        else path.read_bytes()
        if path.is_file()
        else None
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
    assert (
        code == 4
        and output == f"error: runs/run/{name} is a link or not a regular file; remove it\n"
    )
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


def test_hard_links_are_not_written_through(tmp_path, folder, resume):
    paths = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    linked = [tmp_path / f"outside-{n}" for n in range(len(paths))]
    for path, other in zip(paths, linked, strict=True):
        os.link(path, other)
    os.link(linked[0], folder / "curve.png")
    before = [path.read_bytes() for path in linked]
    draw_run(folder / "metrics.jsonl", folder / "curve.png")
    assert resume("train.steps=6")[0] == 0
    assert [path.read_bytes() for path in linked] == before


KINDS = {
    "pipe": os.mkfifo,
    "socket": lambda path: os.mknod(path, stat.S_IFSOCK | 0o600),
    "folder": os.mkdir,
    "empty": lambda path: path.touch(),
    "unreadable": lambda path: path.touch(0),
    "itself": lambda path: path.symlink_to(path.name),
    "nothing": lambda path: path.symlink_to("nothing"),
    "zero": lambda path: path.symlink_to("/dev/zero"),
    "outside": lambda path: path.symlink_to(OUTSIDE.absolute()),
    "file": lambda path: path.symlink_to((OUTSIDE / "file").absolute()),
    "hard link": lambda path: os.link(OUTSIDE / "file", path),
}
OUTSIDE = Path("outside")
CHECKPOINT_FILES = [f"checkpoints/{NEWEST}/{name}" for name in (*checkpoint.FILES, "manifest.json")]
OBJECTS = sorted({*FILES, *FOLDERS, *CHECKPOINT_FILES})


def swap(name, cwd):
    """One object of a run is replaced by one of each kind, and each command reads the run."""
    os.chdir(cwd)
    for kind, put in KINDS.items():
        OUTSIDE.mkdir()
        (OUTSIDE / "file").write_text("precious")
        path = copy_run(cwd) / name
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
        put(path)
        before = contents(Path("runs"))
        for command in COMMANDS:
            code, _ = attempt(command)
            assert code in (0, 4), (kind, command)
            shutil.rmtree("exported", ignore_errors=True)
        after = {
            path: data for path, data in contents(Path("runs")).items() if path.name not in OWN
        }
        assert after == {path: data for path, data in before.items() if path.name not in OWN}
        assert contents(OUTSIDE) == {OUTSIDE / "file": b"precious"}, kind
        shutil.rmtree("runs")
        shutil.rmtree(OUTSIDE)


OWN = {"lock", "owner.json"}  # which a resume may write


def test_a_pointer_may_be_anything(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    swap("checkpoints/latest", tmp_path)


@pytest.mark.faults
def test_every_object_may_be_anything(tmp_path):
    run_trials(swap, OBJECTS, tmp_path)


def test_a_file_that_is_swapped_after_the_check(folder, monkeypatch):
    """open_file itself follows no link and waits for no pipe."""
    monkeypatch.setattr(checkpoint, "refuse_links", lambda folder: None)
    for kind in ("pipe", "zero", "itself", "folder", "socket"):
        path = folder / "config.yaml"
        shutil.rmtree(path) if path.is_dir() else path.unlink()
        KINDS[kind](path)
        assert attempt("sample")[0] == 4


@pytest.mark.parametrize("pointer", [b"\xff\xfe", b"x" * 5000, b"\0", b""])
def test_a_bad_best_pointer(folder, resume, pointer):
    (folder / "checkpoints/best").write_bytes(pointer)
    code, output = resume("train.steps=6")
    assert (
        code == 4
        and output.startswith("error: ")
        and "checkpoints/best" in output
        and len(output) < 300
    )


BAD_ROWS = [b"[" * 200_000, b'{"step": 1, "loss": "x", "seconds": "y", "tokens": []}', b"\xff\0"]
BAD_ROWS += [
    b'{"step": 1, "loss": 2}',
    b'{"step": 1, "seconds": ' + b"9" * 4000 + b"}",
    b'{"step": 2, "lo',
]


def test_bad_rows_are_ignored(folder, resume):
    path = folder / "metrics.jsonl"
    path.write_bytes(b"\n".join([*BAD_ROWS, path.read_bytes()]))
    code, output = resume("train.steps=6")
    assert code == 0, output
    assert max(row["step"] for row in rows(path)) == 6
    assert all(isinstance(value, int | float) for row in rows(path) for value in row.values())
