"""Cached tokens are complete or absent: after a kill, on a full disk, and with two processes."""

import os
import re
import signal
from functools import cache, partial
from itertools import product

import pytest

from data import prepare
from tests.faults.harness import HOME, OVERRIDES, assert_equal, assert_resumes, end, run, start
from tests.faults.shim import Shim, full, kill, operations, pause, send
from tests.parts import thin

TRIALS = 30  # over all operations
CACHE = "data.cache=cache"


@cache
def number_of_operations():
    cwd = HOME / "cache-operations"
    cwd.mkdir()
    return len(operations(cwd, CACHE, below="/cache/"))


EVERYWHERE = product([kill, full], range(TRIALS))
USUAL = [(kill, 10), (full, 20)]


@pytest.mark.parametrize("act, trial", thin(EVERYWHERE, USUAL))
def test_nothing_half_done_is_used(act, trial, tmp_path):
    at = 1 + trial * number_of_operations() // TRIALS
    code, output = run(tmp_path, CACHE, act=Shim(act, at, below="/cache/"))
    if act is full and code == 0:  # what was refused is not needed
        return
    assert code == (-signal.SIGKILL if act is kill else 6), output
    if act is full:
        [error] = re.findall("error: .*", output)
        assert "no space left on device" in error
        assert not list(tmp_path.rglob("*.draft"))
    assert_resumes(tmp_path, CACHE)


def test_two_processes_tokenize_once(tmp_path):
    """The first stops in the middle, until the second has come to the lock."""
    pids = []
    at_the_lock = partial(send, prepare, "FileLock", 1, signal.SIGSTOP)
    for name, act in (("first", Shim(pause, below=".draft")), ("second", at_the_lock)):
        pids.append(start(tmp_path, [*OVERRIDES, CACHE, f"name={name}"], act, name))
        assert os.WIFSTOPPED(os.waitpid(pids[-1], os.WUNTRACED)[1])
    for pid in reversed(pids):
        os.kill(pid, signal.SIGCONT)
    # a folder cannot be renamed to one that is there: the second would fail
    assert [end(pid) for pid in pids] == [0, 0]
    for name in ("first", "second"):
        assert_equal(tmp_path / "runs" / name)
