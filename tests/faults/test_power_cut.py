"""A power cut at any moment. What is left on a disk that keeps only what was synced, or any part of the rest
as well, is whole, and a run resumes from it to the same bytes."""

import os
import random
import re
import shutil
import signal
from pathlib import Path
from typing import NamedTuple

import pytest

from configs.errors import CheckpointError
from data.store import Corpus
from tests.faults.harness import (
    STEPS,
    TIMES,
    child,
    equal,
    exit_code,
    overridden,
    reference,
    run_trials,
    train,
    verified_steps,
)
from tests.faults.shim import Shim, kill, operations
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


def load(path):
    """A file, or a folder with all that is in it, as it is on a disk."""
    if path.is_dir():
        node = Folder()
        node.now = node.synced = {below.name: load(below) for below in path.iterdir()}
    else:
        node = File()
        node.data = node.synced = path.read_bytes()
    return node


class Disk:
    """The folder `root`, which was a copy of the folder `before`."""

    def __init__(self, root, before):
        self.root, self.top = root, load(before)

    def find(self, path):
        node = self.top
        for name in Path(os.path.relpath(path, self.root)).parts:
            node = node.now.get(name) if isinstance(node, Folder) else None
        return node

    def do(self, name, path, data=None):
        """An operation of a log; one that failed changes nothing."""
        node, folder, base = (
            self.find(path),
            self.find(os.path.dirname(path)),
            os.path.basename(path),
        )
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


def states(recorded, folder, draws):
    """The folder as a cut after each operation leaves it: with what was synced, and more by each draw."""
    disk = Disk(recorded.root, recorded.before)
    for entry in recorded.log:
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


def check(recorded, folder, *draws):
    """At every operation; the newest checkpoint never gets older."""
    newest = 0
    for draw in states(recorded, folder, draws):
        step = newest_step(folder / "runs/run")
        if not draw:
            assert step >= newest
            newest = step
    assert newest == STEPS


class Recorded(NamedTuple):
    root: Path
    before: Path  # a copy of it
    log: list  # the disk operations of a run in it


def record(folder, kill_at=None):
    """A run, or what resumes one that was killed at this operation."""
    root, before = folder / "root", folder / "before"
    root.mkdir()
    if kill_at:
        assert exit_code(child(root, overridden(), Shim(kill_at, kill))) == -signal.SIGKILL
    shutil.copytree(root, before)
    return Recorded(root, before, operations(root, overridden("resume=auto"), below=str(root)))


@pytest.fixture(scope="module")
def new(tmp_path_factory):
    return record(tmp_path_factory.mktemp("new"))


@pytest.fixture(scope="module")
def resumed(tmp_path_factory):
    return record(tmp_path_factory.mktemp("resumed"), kill_at=110)


@pytest.mark.parametrize("which", ["new", "resumed"])
def test_checkpoints_are_whole_and_their_rows_are_there(which, request, tmp_path):
    check(request.getfixturevalue(which), tmp_path / "state", random.Random(0))


SYNCS = [
    r"metrics\.jsonl",
    r"samples\.jsonl",
    r"\w+\.safetensors",
    r"manifest\.json",
    r"step-\d+\.draft",
]
SYNCS += ["checkpoints", "run", "runs", "root"]


@pytest.mark.parametrize("left_out", SYNCS)
def test_a_missing_sync_is_detected(new, tmp_path, left_out):
    log = [e for e in new.log if e[0] != "fsync" or not re.fullmatch(left_out, Path(e[1]).name)]
    with pytest.raises((CheckpointError, AssertionError)):
        check(new._replace(log=log), tmp_path / "state")


def resume_after(recorded, cuts, folder):
    """Cuts: (after so many operations, seed of what survives beside what was synced, or None)."""

    def resume(cut, cwd):
        n, seed = cut
        disk = Disk(recorded.root, recorded.before)
        for entry in recorded.log[:n]:
            disk.do(*entry)
        cwd.rmdir()
        disk.top.write_to(cwd, seed and random.Random(seed))
        code, output = train(cwd, overridden("resume=auto"))
        assert code == 0, output
        equal(cwd / "runs/run")

    return run_trials(resume, cuts, folder)


def test_a_run_resumes(new, tmp_path):
    ends = [n for n, e in enumerate(new.log, 1) if e[0] == "fsync" and e[1].endswith("checkpoints")]
    cuts = [(ends[1], None), (ends[-1], None)]
    cuts += [(random.Random(seed).randrange(len(new.log)), seed) for seed in (1, 2, 3)]
    resume_after(new, cuts, tmp_path)


@pytest.mark.faults
@pytest.mark.parametrize("which", ["new", "resumed"])
def test_a_run_resumes_from_every_cut(which, request, tmp_path):
    recorded = request.getfixturevalue(which)
    cuts = [(n, seed) for n in range(len(recorded.log) + 1) for seed in (None, n + 1)]
    print(f"{resume_after(recorded, cuts, tmp_path)} power cuts")


def test_tokens_are_complete_or_absent(tmp_path):
    root, before, folder = tmp_path / "root", tmp_path / "before", tmp_path / "state"
    for path in (root, before):
        path.mkdir()
    log = operations(root, overridden(f"data.cache={root}/cache", "dry_run=true"), below=str(root))
    seen = set()
    for _ in states(
        Recorded(root, before, log), folder, [random.Random(seed) for seed in range(8)]
    ):
        corpora = [path for path in (folder / "cache").glob("text-*") if not path.suffix]
        for path in corpora:
            Corpus(path)
        seen.add(len(corpora))
    assert seen == {0, 1}


def test_baselines_that_were_cut_off(tmp_path):
    """They are kept in the cache without a sync, and computed again."""
    assert train(tmp_path, overridden(f"data.cache={tmp_path}/cache"))[0] == 0
    [kept] = tmp_path.glob("cache/*/bits_per_byte.json")
    kept.write_bytes(b"")
    code, output = train(tmp_path, overridden(f"data.cache={tmp_path}/cache", "name=other"))
    assert code == 0 and "xz -9 primed" in output, output
