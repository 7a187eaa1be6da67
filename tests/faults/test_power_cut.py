"""A power cut at any moment: what is left of a run is whole, and the run resumes to the same bytes.

A disk keeps what was synced. Of the rest it may keep any part, or nothing.
"""

import os
import random
import re
import shutil
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from configs.errors import CheckpointError
from model.checkpoint import read_best, read_config, read_tokenizer, step_name
from tests.faults.harness import (
    RUN,
    STEPS,
    assert_equal,
    end,
    home,
    overridden,
    resume,
    start,
    untimed,
    verified_steps,
)
from tests.faults.shim import kill_after_a_checkpoint, operations
from tests.parts import thin
from training.log import read_rows

CUTS = 150  # of each run, at least one after each operation


# ---- the model of a disk


class File:
    def __init__(self, data=b""):
        self.data = data
        self.synced = data

    def write_to(self, path, draw):
        """What was synced, and perhaps a part of the rest; its size may come before its bytes."""
        left = self.synced
        if draw and draw.random() < 0.7:
            size = draw.choice([len(self.data), draw.randint(0, len(self.data))])
            left = max(self.synced, self.data[:size], key=len)
            if draw.random() < 0.5:
                left = self.synced + bytes(len(left) - len(self.synced))
        path.write_bytes(left)


class Folder:
    def __init__(self, entries=None):
        self.entries = entries or {}
        self.synced = self.entries
        self.changes = []  # that were not synced

    def change(self, removed, added):
        self.changes.append((removed, added))
        self.entries = changed(self.entries, removed, added)

    def sync(self):
        self.synced = self.entries
        self.changes = []

    def write_to(self, path, draw):
        """A rename is atomic; of the changes that were not synced, any may be lost."""
        entries = self.synced
        for change in self.changes:
            if draw and draw.random() < 0.5:
                entries = changed(entries, *change)
        path.mkdir(exist_ok=True)
        for name, node in entries.items():
            node.write_to(path / name, draw)


def changed(entries, removed, added):
    return {name: node for name, node in entries.items() if name != removed} | added


def load(path):
    """A file, or a folder with all that is in it, as it is on a real disk."""
    if path.is_dir():
        return Folder({below.name: load(below) for below in path.iterdir()})
    return File(path.read_bytes())


class Recorded(NamedTuple):
    """A run in the folder `root`."""

    root: Path
    before: Path  # a copy of the folder as it was
    log: list  # of [name, path, argument]


class Disk:
    """The folder of a recorded run, on which its operations are done again."""

    def __init__(self, recorded):
        self.root = recorded.root
        self.top = load(recorded.before)

    def find(self, path):
        node = self.top
        for name in Path(os.path.relpath(path, self.root)).parts:
            node = node.entries.get(name) if isinstance(node, Folder) else None
        return node

    def do(self, name, path, argument):
        """One that failed changes nothing."""
        folder, base = self.find(os.path.dirname(path)), os.path.basename(path)
        node = self.find(path)
        if node is None and folder is not None:
            if name == "mkdir":
                folder.change(base, {base: Folder()})
            elif name == "open" or (name == "fsync" and argument is not None):  # of safetensors
                node = File()
                folder.change(base, {base: node})
        if node is None:
            return
        if name == "open" and argument:
            node.data = b""
        elif name == "write":
            node.data += argument.encode("latin-1")
        elif name in ("truncate", "ftruncate"):
            node.data = node.data[:argument]
        elif name == "fsync" and isinstance(node, Folder):
            node.sync()
        elif name == "fsync":
            node.data = node.synced = argument.encode("latin-1")
        elif name in ("rename", "replace"):
            folder.change(base, {os.path.basename(argument): node})
        elif name in ("unlink", "rmdir"):
            folder.change(base, {})


# ---- runs


@cache
def recorded(kind):
    """Of a new run, or of one that resumes."""
    root = home() / kind
    root.mkdir()
    if kind == "resumed":
        assert end(start(root, overridden(), kill_after_a_checkpoint)) < 0
    before = Path(shutil.copytree(root, home() / f"{kind}-before"))
    return Recorded(root, before, operations(root, "resume=auto", below=str(root)))


def states(run, folder, *draws):
    """The folder as a cut after each operation leaves it: with what was synced (True), and with a
    part of the rest (False), once for each draw."""
    disk = Disk(run)
    for entry in run.log:
        disk.do(*entry)
        for draw in (None, *draws):
            shutil.rmtree(folder, ignore_errors=True)
            disk.top.write_to(folder, draw)
            yield draw is None


def newest_step(folder):
    """All checkpoints that can be seen are whole, and so is what belongs to them."""
    steps = verified_steps(folder)
    if (folder / "config.yaml").exists():
        read_config(folder)
    if not steps:
        return 0
    read_tokenizer(folder)
    assert read_best(folder) in (None, *map(step_name, steps))
    for name in ("metrics.jsonl", "samples.jsonl"):
        rows = [rows_until(steps[-1], place / name) for place in (folder, home() / RUN)]
        assert rows[0] == rows[1], name
    return steps[-1]


def rows_until(step, path):
    """The rows that were written before the checkpoint of a step."""
    return [untimed(row) for row in read_rows(path) if row["step"] <= step and not row.get("full")]


def check(run, folder, *draws):
    """The newest checkpoint never gets older, and the last one is there in the end."""
    newest = 0
    for only_synced in states(run, folder, *draws):
        step = newest_step(folder / RUN)
        if only_synced:
            assert step >= newest
            newest = step
    assert newest == STEPS


@pytest.mark.faults
@pytest.mark.parametrize("kind", ["new", "resumed"])
def test_checkpoints_are_whole_after_every_operation(kind, tmp_path):
    check(recorded(kind), tmp_path / "state", random.Random(0))


SYNCED = ["metrics.jsonl", "samples.jsonl", "model.safetensors", "optimizer.safetensors"]
SYNCED += ["state.json", "manifest.json", "best.draft", "config.yaml.draft", "tokenizer.json.draft"]
SYNCED += [r"step-\d+.draft", "checkpoints", "run", "runs", "new"]


@pytest.mark.parametrize("name", thin(SYNCED, SYNCED[::2]))
def test_a_missing_sync_is_detected(name, tmp_path):
    """Without the syncs of one kind of file or folder, the test above fails."""
    run = recorded("new")
    log = [e for e in run.log if e[0] != "fsync" or not re.fullmatch(name, Path(e[1]).name)]
    assert len(log) < len(run.log)
    with pytest.raises((CheckpointError, AssertionError)):
        check(run._replace(log=log), tmp_path / "state")


@pytest.mark.faults
@pytest.mark.parametrize("kept", ["synced", "more"])
@pytest.mark.parametrize("kind", ["new", "resumed"])
@pytest.mark.parametrize("cut", range(CUTS))
def test_a_run_resumes_from_every_cut(cut, kind, kept, tmp_path):
    run = recorded(kind)
    assert len(run.log) < CUTS
    disk = Disk(run)
    for entry in run.log[: cut * len(run.log) // (CUTS - 1)]:
        disk.do(*entry)
    disk.top.write_to(tmp_path, random.Random(cut) if kept == "more" else None)
    resume(tmp_path)
    assert_equal(tmp_path / RUN)
