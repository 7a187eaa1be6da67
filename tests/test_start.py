"""A command imports what is slow to import only when it needs it."""

import os
import subprocess
import sys

import pytest

from tests.parts import ROOT
from tests.training.runs import TEXT, USUAL

LIBRARIES = "datasets huggingface_hub matplotlib pandas requests tokenizers transformers wandb"
SLOW = {"torch._dynamo", "torch.distributed.tensor", "sympy", *LIBRARIES.split()}
ENVIRONMENT = os.environ | {"PYTHONPATH": str(ROOT)}
# prints what is imported at the end, or once a method has returned for the first time
CHILD = """
import atexit, importlib, runpy, sys
command, first, *arguments = sys.argv[1:]
report = lambda: print("imported", *sys.modules, file=sys.__stderr__)
if first:
    module, owner, name = first.split(":")
    owner = getattr(importlib.import_module(module), owner)
    method = getattr(owner, name)
    def once(*args, **options):
        setattr(owner, name, method)
        result = method(*args, **options)
        report()
        return result
    setattr(owner, name, once)
else:
    atexit.register(report)
sys.argv = [command, *arguments]
run = runpy.run_path if command.endswith(".py") else runpy.run_module
run(command, run_name="__main__")
"""
HELPS = """
import runpy, sys
_, root, *commands = sys.argv
for command in commands:
    sys.argv = [command, "--help"]
    try:
        if command.endswith(".py"):
            runpy.run_path(f"{root}/{command}", run_name="__main__")
        else:
            runpy.run_module(command, run_name="__main__")
    except SystemExit as end:
        assert not end.code, command
"""


def imported(home, command, *arguments, first=""):
    command = str(ROOT / command) if command.endswith(".py") else command
    argv = [sys.executable, "-c", CHILD, command, first, *arguments]
    done = subprocess.run(argv, cwd=home, env=ENVIRONMENT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    [line] = [line for line in done.stderr.splitlines() if line.startswith("imported ")]
    return set(line.split())


def test_help(tmp_path):
    """Of one command after the other, in one process."""
    (tmp_path / "helps.py").write_text(HELPS)
    commands = [
        "train.py",
        "sample.py",
        "data",
        "model.hub",
        "training.compare",
        "training.evaluate",
    ]
    assert not imported(tmp_path, "helps", str(ROOT), *commands) & SLOW


@pytest.mark.quick
def test_the_first_step(tmp_path):
    """With an evaluation before it."""
    (tmp_path / "book.txt").write_text(TEXT)
    assert not imported(tmp_path, "train.py", *USUAL, first="training.log:Log:step") & SLOW


def test_the_first_token(tmp_path):
    (tmp_path / "book.txt").write_text(TEXT)
    imported(tmp_path, "train.py", *USUAL)
    prompt = ["--prompt", "line", "--max-new-tokens", "2"]
    first = "model.generate.stream:TextStream:push"
    assert not imported(tmp_path, "sample.py", *prompt, first=first) & {"sympy", *SLOW}
