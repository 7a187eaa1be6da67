"""What a command does before its imports: Ctrl-C ends it, and it may have no standard streams."""

import os
import signal
import subprocess
import sys

import pytest

from tests.faults.harness import end, start
from tests.parts import ROOT, thin
from tests.training.runs import USUAL, newest, train

IMPORT = """
import os, runpy, signal, sys

class Interrupt:
    def find_spec(name, path=None, target=None):
        if name == sys.argv[1]:
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupt)
runpy.run_path("train.py", run_name="__main__")
"""
COMPOSE = ["--cfg", "job", "size=tiny"]


@pytest.mark.parametrize("module", thin(["hydra", "torch", "model.block"], ["torch"]))
def test_interrupted_while_a_module_is_imported(module):
    command = [sys.executable, "-c", IMPORT, module]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 130 and not done.stderr, done.stderr


@pytest.fixture(scope="module")
def n_calls():
    """The number of calls of functions while settings are composed."""
    calls = []
    for _ in range(2):  # the first fills caches
        calls.clear()
        sys.setprofile(lambda frame, event, _: calls.append(event))
        train(*COMPOSE)
        sys.setprofile(None)
    return calls.count("call")


@pytest.mark.parametrize("percent", thin(range(2, 100, 3), [14, 26]))
def test_interrupted_while_settings_are_composed(tmp_path, n_calls, percent):
    left = n_calls * percent // 100

    def profile(frame, event, argument):
        nonlocal left
        left -= event == "call"
        if left == 0:
            sys.setprofile(None)
            os.kill(os.getpid(), signal.SIGINT)

    code = end(start(tmp_path, COMPOSE, act=lambda: sys.setprofile(profile)))
    assert code == 130 and not (tmp_path / "output").read_text()


@pytest.mark.parametrize("streams", thin([">&-", "2>&-", "<&- >&- 2>&-"], ["<&- >&- 2>&-"]))
def test_closed_streams(tmp_path, streams):
    (tmp_path / "book.txt").write_text("line of a text\n" * 400)
    settings = " ".join(USUAL)
    command = f"{sys.executable} {ROOT / 'train.py'} {settings} name=x {streams}"
    assert subprocess.run(command, shell=True, cwd=tmp_path).returncode == 0
    assert newest(tmp_path / "runs/x").name == "step-00000004"
