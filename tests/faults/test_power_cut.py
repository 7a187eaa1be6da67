"""A power cut at any moment. What is left on a disk that keeps only what was synced, or any part of the rest
as well, is whole, and a run resumes from it to the same bytes."""

import os
import random
import re
import shutil
from pathlib import Path

import pytest

from configs.errors import CheckpointError
from data.disk import HashCache
from data.store import Corpus
from tests.faults.harness import (
    STEPS,
    TIMES,
    equal,
    overridden,
    reference,
    run_trials,
    train,
    verified_steps,
)
from tests.faults.shim import operations
from training.monitor.metrics import read_rows


class File:
    def __init__(self):
        self.data = self.synced = b""

    def sync(self):
        self.synced = self.data

    def write_to(self, path, draw):
        data = self.synced
        if draw and draw.random() < 0.7:  # of the rest, a part; its size may come before its bytes
            size = draw.choice([len(self.data), draw.randint(0, len(self.data))])
            data = max(data, self.data[:size], key=len)
            data = draw.choice([data, self.synced + bytes(len(data) - len(self.synced))])
        path.write_bytes(data)


class Folder:
    def __init__(self):
        self.now, self.synced, self.changes = {}, {}, []

    def change(self, removed, added):
        self.changes.append((removed, added))
        self.now = changed(self.now, removed, added)

    def sync(self):
        self.synced, self.changes = self.now, []

    def write_to(self, path, draw):
        """A rename is atomic; of the changes that were not synced, any may be lost."""
        entries = self.synced
        for change in self.changes:
            if draw and draw.random() < 0.5:
                entries = changed(entries, *change)
        path.mkdir()
        for name, node in entries.items():
            node.write_to(path / name, draw)


def changed(entries, removed, added):
    return {name: node for name, node in entries.items() if name != removed} | added


class Disk:
    def __init__(self, root):
        self.root, self.top = root, Folder()

    def find(self, path):
        node = self.top
        for name in Path(os.path.relpath(path, self.root)).parts:
            node = node.now.get(name) if isinstance(node, Folder) else None
        return node

    def do(self, name, path, data=None):
        """An operation of a log; one that failed changes nothing."""
        node, folder, base = self.find(path), self.find(os.path.dirname(path)), os.path.basename(path)
        if node is None:
            if folder and (name in ("open", "mkdir") or (data and name == "fsync")):
                folder.change(None, {base: Folder() if name == "mkdir" else File()})
                self.do(name, path, data)
        elif name == "write":
            node.data += bytes.fromhex(data)
        elif name == "ftruncate":
            node.data = node.data[:data]
        elif name == "fsync":
            node.data = bytes.fromhex(data or "")
            node.sync()
        elif name in ("rename", "replace"):
            folder.change(base, {os.path.basename(data): node})
        elif name in ("unlink", "rmdir"):
            folder.change(base, {})


def states(log, root, folder, draws):
    """The folder as a cut after each operation leaves it: with what was synced, and more by each draw."""
    disk = Disk(root)
    for entry in log:
        disk.do(*entry)
        for draw in (None, *draws) if entry[0] == "fsync" else draws:
            shutil.rmtree(folder, ignore_errors=True)
            disk.top.write_to(folder, draw)
            yield draw


def newest_step(folder):
    """All visible checkpoints are whole, and the rows up to the newest are there."""
    newest = max(verified_steps(folder), default=0)

    def rows(path):
        rows = [row for row in read_rows(path) if row["step"] < newest + ("loss" in row)]
        return [{key: value for key, value in row.items() if key not in TIMES} for row in rows]

    for name in ("metrics.jsonl", "samples.jsonl"):
        assert rows(folder / name) == rows(reference() / name), name
    return newest


def check(log, root, folder, *draws):
    """At every operation; the newest checkpoint never gets older."""
    newest = 0
    for draw in states(log, root, folder, draws):
        step = newest_step(folder / "runs/run")
        if not draw:
            assert step >= newest
            newest = step
    assert newest == STEPS


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """(the folder of a run, its disk operations)"""
    root = tmp_path_factory.mktemp("recorded")
    return root, operations(root, overridden(), below=str(root))


def test_checkpoints_are_whole_and_their_rows_are_there(recorded, tmp_path):
    root, log = recorded
    check(log, root, tmp_path / "state", random.Random(0))


SYNCS = [r"metrics\.jsonl", r"samples\.jsonl", r"\w+\.safetensors", r"manifest\.json", r"step-\d+\.draft"]
SYNCS += ["checkpoints", "run", "runs", ""]


@pytest.mark.parametrize("left_out", SYNCS)
def test_a_missing_sync_is_detected(recorded, tmp_path, left_out):
    root, log = recorded
    name = left_out or re.escape(root.name)
    log = [entry for entry in log if entry[0] != "fsync" or not re.fullmatch(name, Path(entry[1]).name)]
    with pytest.raises((CheckpointError, AssertionError)):
        check(log, root, tmp_path / "state")


def resume_all(recorded, cuts, folder):
    """Resume after each (number of operations, seed of what survives beside what was synced, or None)."""
    root, log = recorded

    def resume(cut, cwd):
        n, seed = cut
        disk = Disk(root)
        for entry in log[:n]:
            disk.do(*entry)
        cwd.rmdir()
        disk.top.write_to(cwd, seed and random.Random(seed))
        code, output = train(cwd, overridden("resume=auto"))
        assert code == 0, output
        equal(cwd / "runs/run")

    return run_trials(resume, cuts, folder)


def test_a_run_resumes(recorded, tmp_path):
    log = recorded[1]
    synced = [n for n, entry in enumerate(log, 1) if entry[0] == "fsync" and entry[1].endswith("checkpoints")]
    cuts = [(n, None) for n in synced[1::4]]
    resume_all(
        recorded, cuts + [(random.Random(seed).randrange(len(log)), seed) for seed in (1, 2, 3)], tmp_path
    )


@pytest.mark.faults
def test_a_run_resumes_from_every_cut(recorded, tmp_path):
    cuts = [(n, seed) for n in range(len(recorded[1]) + 1) for seed in (None, n + 1)]
    print(f"{resume_all(recorded, cuts, tmp_path)} power cuts")


def test_tokens_are_complete_or_absent(tmp_path):
    root, folder = tmp_path / "recorded", tmp_path / "state"
    root.mkdir()
    log = operations(root, overridden(f"data.cache={root}/cache", "dry_run=true"), below=str(root))
    seen = set()
    for _ in states(log, root, folder, [random.Random(seed) for seed in range(8)]):
        corpora = [path for path in (folder / "cache").glob("text-*") if not path.suffix]
        for path in corpora:
            Corpus(path, HashCache(tmp_path / "hashes.json"))
        seen.add(len(corpora))
    assert seen == {0, 1}
