"""A command imports what is slow to import only when it needs it."""

import os
import re
import subprocess
import sys

import pytest

from tests.parts import ROOT
from tests.training.runs import TEXT, USUAL

LIBRARIES = "datasets huggingface_hub matplotlib pandas requests tokenizers transformers wandb"
SLOW = {"torch._dynamo", "torch.distributed.tensor", "sympy", *LIBRARIES.split()}
HELPS = """
import runpy, sys
for command in sys.argv[1:]:
    sys.argv = [command, "--help"]
    try:
        runpy.run_module(command, run_name="__main__")
    except SystemExit as end:
        assert not end.code, command
"""
COMMANDS = ["train", "sample", "data", "model.hub", "training.compare", "training.evaluate"]


def output_of(folder, *command):
    """What a command prints; each import that has ended is a line."""
    argv = [sys.executable, "-X", "importtime", *command]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    done = subprocess.run(argv, cwd=folder, env=environment, **options)
    assert done.returncode == 0, done.stdout
    return done.stdout


def slow_imports(output):
    imported = set(re.findall(r"^import time:.*\| +(\S+)$", output, re.MULTILINE))
    assert "torch" in imported
    return imported & SLOW


@pytest.fixture(scope="module")
def training(tmp_path_factory):
    """(folder, output) of a run"""
    folder = tmp_path_factory.mktemp("start")
    (folder / "book.txt").write_text(TEXT)
    return folder, output_of(folder, "-m", "train", *USUAL, "log.every=1")


def test_help(tmp_path):
    """Of one command after the other, in one process."""
    assert not slow_imports(output_of(tmp_path, "-c", HELPS, *COMMANDS))


@pytest.mark.quick
def test_the_first_step(training):
    """With an evaluation before it."""
    _, output = training
    before, line, after = output.partition("\nstep      1  loss")
    assert line and not slow_imports(before)
    assert "matplotlib" in after  # for the curve


def test_the_first_token(training):
    folder, _ = training
    prompt = ["--prompt", "line", "--max-new-tokens", "2"]
    assert not slow_imports(output_of(folder, "-m", "sample", *prompt))
