"""Cached tokens are complete or absent: after a kill, on a full disk, and with two processes."""

import os
import re
import signal
from functools import cache
from pathlib import Path

import pytest

from tests.faults.harness import (
    RUN,
    assert_equal_weights,
    end,
    home,
    overridden,
    resume,
    run,
    start,
)
from tests.faults.shim import REAL_OPEN, Shim, full, kill, operations

TRIALS = 30  # over all operations until the tokens are complete


def is_corpus(path):
    return "." not in Path(path).name


@cache
def number_of_operations():
    """Until the tokens are in place."""
    cwd = home() / "cache-operations"
    cwd.mkdir()
    log = operations(cwd, "data.cache=cache", below="/cache/")
    renames = [n for n, entry in enumerate(log, 1) if entry[0] == "rename" and is_corpus(entry[2])]
    assert len(renames) == 1
    return renames[0]


def corpora(cwd):
    return [path for path in (cwd / "cache").iterdir() if path.is_dir() and is_corpus(path.name)]


@pytest.mark.parametrize("act", [kill, full])
@pytest.mark.parametrize("trial", range(0, TRIALS, 40))
def test_smoke(trial, act, tmp_path):
    check(trial, act, tmp_path)


@pytest.mark.faults
@pytest.mark.parametrize("act", [kill, full])
@pytest.mark.parametrize("trial", range(TRIALS))
def test_nothing_half_done_is_used(trial, act, tmp_path):
    check(trial, act, tmp_path)


def check(trial, act, tmp_path):
    at = 1 + trial * number_of_operations() // TRIALS
    code, output = run(tmp_path, "data.cache=cache", act=Shim(act, at, below="/cache/"))
    if act is full and code == 0:  # what was refused is not needed
        return
    assert code == (-signal.SIGKILL if act is kill else 6), output
    if act is full:
        [error] = re.findall("error: .*", output)
        assert "no space left on device" in error
        assert not list(tmp_path.rglob("*.draft"))
    assert not corpora(tmp_path)
    resume(tmp_path, "data.cache=cache")
    assert_equal_weights(tmp_path / RUN)


def test_two_processes_tokenize_once(tmp_path):
    """The first stops in the middle, until the second has come to the lock."""
    reads, writes = os.pipe()

    def first(name, path, argument):
        if name == "mkdir" and path.endswith(".draft"):
            os.kill(os.getpid(), signal.SIGSTOP)

    def second(name, path, argument):
        if path.endswith(".lock"):
            os.write(writes, b"at the lock")

    def note(act):
        def both(name, path, argument):
            if name == "rename" and is_corpus(str(argument)):
                with REAL_OPEN(tmp_path / "renamed", "a") as file:
                    file.write("x")
            act(name, path, argument)

        return Shim(both, below="/cache/", always=True)

    pids = []
    for name, act in (("first", first), ("second", second)):
        pids.append(
            start(tmp_path, overridden("data.cache=cache", f"name={name}"), note(act), name)
        )
        if name == "first":
            assert os.WIFSTOPPED(os.waitpid(pids[0], os.WUNTRACED)[1])
    os.read(reads, 100)
    os.kill(pids[0], signal.SIGCONT)
    assert [end(pid) for pid in pids] == [0, 0]
    assert (tmp_path / "renamed").read_text() == "x"
    for name in ("first", "second"):
        assert_equal_weights(tmp_path / "runs" / name)
