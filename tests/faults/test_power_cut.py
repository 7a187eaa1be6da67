"""A power cut at any moment: what is left of a run is whole, and the run resumes to the same bytes.

A disk keeps what was synced. Of the rest it may keep any part, or nothing.
"""

import os
import random
import re
import shutil
from pathlib import Path

import pytest

from configs.errors import CheckpointError
from model.checkpoint import read_config, read_tokenizer
from model.runs import read_best, read_rows, step_name
from tests.faults.harness import HOME, RUN, STEPS, assert_resumes, valid_steps
from tests.faults.shim import recorded
from tests.parts import thin
from tests.training.runs import TIMES

CUTS = 150  # of each run, at least one after each operation
every_kind = pytest.mark.parametrize("kind", ["new", "resumed"])


class File:
    def __init__(self, data=b""):
        self.sync(data)

    def sync(self, data):
        self.data = self.synced = data

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
        self.entries = self.synced = entries or {}
        self.changes = []  # that were not synced: {name: a file, a folder or None}

    def change(self, change):
        self.changes.append(change)
        self.entries = changed(self.entries, change)

    def sync(self, _):
        self.synced = self.entries
        self.changes = []

    def write_to(self, path, draw):
        """A rename is atomic; of the changes that were not synced, any may be lost."""
        entries = self.synced
        for change in self.changes:
            if draw and draw.random() < 0.5:
                entries = changed(entries, change)
        path.mkdir()
        for name, node in entries.items():
            node.write_to(path / name, draw)


def changed(entries, change):
    return {name: node for name, node in (entries | change).items() if node}


def load(path):
    """A file, or a folder with all that is in it, as it is on a real disk."""
    if path.is_dir():
        return Folder({below.name: load(below) for below in path.iterdir()})
    return File(path.read_bytes())


class Disk:
    """The folder of a recorded run, on which operations are done again."""

    def __init__(self, recorded):
        self.top = load(recorded.before)

    def find(self, path):
        node = self.top
        for name in Path(path).parts:
            node = node.entries.get(name) if isinstance(node, Folder) else None
        return node

    def do(self, name, path, argument):
        """One that failed changes nothing."""
        parent, base = os.path.split(path)
        folder = self.find(parent)
        node = self.find(path)
        is_new = name in ("mkdir", "open") or isinstance(argument, bytes)  # of safetensors
        if folder and not node and is_new:
            node = Folder() if name == "mkdir" else File()
            folder.change({base: node})
        elif not node:
            return
        if name == "open" and argument & os.O_TRUNC:
            node.data = b""
        elif name == "write":
            node.data += argument
        elif name == "fsync":
            node.sync(argument)
        elif name in ("rename", "replace"):
            folder.change({base: None, os.path.basename(argument): node})
        elif name in ("unlink", "rmdir"):
            folder.change({base: None})

    def cut(self, folder, draw=None):
        """Write what a power cut leaves: what was synced and, with random draws, more."""
        shutil.rmtree(folder, ignore_errors=True)
        self.top.write_to(folder, draw)


def newest_step(folder):
    """All checkpoints that can be seen are whole, and so is what belongs to them."""
    steps = valid_steps(folder)
    if (folder / "config.yaml").exists():
        read_config(folder)
    if not steps:
        return 0
    read_tokenizer(folder)
    assert read_best(folder) in (None, *map(step_name, steps))
    for name in ("metrics.jsonl", "samples.jsonl"):
        expected = rows_until(steps[-1], HOME / RUN / name)
        assert rows_until(steps[-1], folder / name) == expected, name
    return steps[-1]


def rows_until(step, path):
    """The rows that were written before the checkpoint of a step, without times."""
    rows = [row for row in read_rows(path) if row["step"] <= step and not row.get("full")]
    return [{name: row[name] for name in row.keys() - TIMES} for row in rows]


def check(run, folder, draw=None):
    """The newest checkpoint never gets older, and the last one is there in the end."""
    disk = Disk(run)
    newest = 0
    for operation in run.log:
        disk.do(*operation)
        disk.cut(folder)
        step = newest_step(folder / RUN)
        assert step >= newest
        newest = step
        if draw:
            disk.cut(folder, draw)
            newest_step(folder / RUN)
    assert newest == STEPS


@pytest.mark.faults
@every_kind
def test_checkpoints_are_whole_after_every_operation(kind, tmp_path):
    check(recorded(kind), tmp_path, random.Random(0))


SYNCED = ["metrics.jsonl", "samples.jsonl", "model.safetensors", "optimizer.safetensors"]
SYNCED += ["state.json", "manifest.json", "best.draft", "config.yaml.draft", "tokenizer.json.draft"]
SYNCED += [r"step-\d+.draft", "checkpoints", "run", "runs", "."]


@pytest.mark.parametrize("name", thin(SYNCED, SYNCED[::3]))
def test_a_missing_sync_is_detected(name, tmp_path):
    """Without the syncs of one kind of file or folder, the test above fails."""
    run = recorded("new")

    def is_kept(operation, path, argument):
        return operation != "fsync" or not re.fullmatch(name, os.path.basename(path))

    log = [entry for entry in run.log if is_kept(*entry)]
    assert len(log) < len(run.log)
    with pytest.raises((CheckpointError, AssertionError)):
        check(run._replace(log=log), tmp_path)


@pytest.mark.faults
@pytest.mark.parametrize("kept", ["synced", "more"])
@every_kind
@pytest.mark.parametrize("cut", range(CUTS))
def test_a_run_resumes_from_every_cut(cut, kind, kept, tmp_path):
    run = recorded(kind)
    assert len(run.log) < CUTS
    disk = Disk(run)
    for entry in run.log[: cut * len(run.log) // (CUTS - 1)]:
        disk.do(*entry)
    disk.cut(tmp_path, random.Random(cut) if kept == "more" else None)
    assert_resumes(tmp_path)
