"""A full log disk or a closed output pipe does not stop a run, and closed streams stop no command."""

import os
import re
import resource
import subprocess
import sys
from contextlib import redirect_stdout
from functools import partial

import pytest

import data.__main__
import model.hub.__main__
import model.shapes
import sample
import training.compare
from configs.cli import discard_output, run_command
from configs.compose import compose
from tests.faults.harness import copy_run, equal, exit_code, fork, overridden, train, verified_steps
from tests.parts import ROOT
from train import main
from training.sweep import launch


def full():
    return os.open("/dev/full", os.O_WRONLY)


def unread():
    """A pipe whose reader has left, as `head` does."""
    reads, writes = os.pipe()
    os.close(reads)
    return writes


@pytest.mark.parametrize("place", [full, unread])
@pytest.mark.parametrize("numbers", [(1,), (2,), (1, 2)], ids=["stdout", "stderr", "both"])
def test_a_run_continues_without_output(tmp_path, place, numbers):
    def act():
        for number in numbers:
            os.dup2(place(), number)
        sys.stdout, sys.stderr = (os.fdopen(n, "w", buffering=1, closefd=False) for n in (1, 2))

    code, output = train(tmp_path, overridden(), act)
    assert code == 0, output
    assert (
        output.count("warning: cannot print any more") == (numbers == (1,))
        and "Traceback" not in output
    )
    if 1 not in numbers:
        assert re.search(
            r"\n4 checkpoints; training blocked for \d+\.\d\d s \(\d\d?\.\d%\)\n", output
        )
    equal(tmp_path / "runs/run")


def start(module, *args):
    return run_command(module.main, args)


def train_all(*overrides):
    """train.py with the usual overrides but a name."""
    usual = [override for override in overridden() if not override.startswith("name=")]
    return launch(main, compose, [*overrides, *usual])


EXPORT = ["export", "--run", "runs/run", "--to", "hf"]
SAMPLE = partial(start, sample, "--run", "runs/run", "--max-new-tokens", "2")
COMMANDS = {  # name: (command, exit code, a file that it makes)
    "train": (
        partial(train_all, "name=new"),
        0,
        "runs/new/checkpoints/step-00000004/model.safetensors",
    ),
    "sweep": (partial(train_all, "-m", "seed=1"), 0, "runs/sweep-*/comparison.md"),
    "help": (partial(train_all, "--help"), 0, None),
    "sample": (partial(SAMPLE, "--prompt", "a", "--attention-map", "map.png"), 0, "map.png"),
    "interactive": (partial(SAMPLE, "--interactive"), 0, None),
    "no prompt": (SAMPLE, 2, None),
    "data": (lambda: start(data.__main__, *overridden("data.cache=cache")), 0, "cache/*/*"),
    "shapes": (partial(start, model.shapes), 0, None),
    "export": (partial(start, model.hub.__main__, *EXPORT), 0, "hf/*.json"),
    "compare": (partial(start, training.compare, "runs/run"), 0, "comparison.png"),
}


def in_child(folder, act):
    """The exit code that act() returns, in a process of its own in the folder."""
    if not (pid := fork()):
        code = 99
        try:
            os.chdir(folder)
            code = act()
        finally:
            os._exit(code)
    return exit_code(pid)


@pytest.mark.parametrize("command", COMMANDS)
def test_closed_streams(tmp_path, command):
    """As a daemon's may be. No file that is opened later takes their place."""
    copy_run(tmp_path)
    run, expected, made = COMMANDS[command]

    def without_streams():
        for number, name in enumerate(("stdin", "stdout", "stderr")):
            os.close(number)
            setattr(sys, name, None)
        code = run()
        in_place = all(
            os.path.samestat(os.fstat(number), os.stat(os.devnull)) for number in range(3)
        )
        return code if in_place else 98

    assert in_child(tmp_path, without_streams) == expected
    assert made is None or any(path.stat().st_size for path in tmp_path.glob(made))


@pytest.mark.parametrize("command", ["sample", "interactive", "no prompt", "compare"])
def test_a_full_stderr_changes_no_exit_code(tmp_path, command):
    copy_run(tmp_path)
    run, expected, made = COMMANDS[command]

    def with_a_full_stderr():
        os.dup2(os.open(os.devnull, os.O_RDWR), 0)
        os.dup2(full(), 2)
        sys.stdin, sys.stderr = os.fdopen(0), os.fdopen(2, "w")
        code = run()
        sys.stderr.flush()
        return code

    assert in_child(tmp_path, with_a_full_stderr) == expected
    assert made is None or any(path.stat().st_size for path in tmp_path.glob(made))


@pytest.mark.parametrize("command", ["export", "compare"])
def test_a_full_stdout_is_an_error_of_the_disk(tmp_path, monkeypatch, capsys, command):
    copy_run(tmp_path)
    monkeypatch.chdir(tmp_path)
    run, _, made = COMMANDS[command]
    with open("/dev/full", "w") as stream, redirect_stdout(stream):
        assert run() == 6
        discard_output(stream)
    assert list(tmp_path.glob(made)) and "no space left" in capsys.readouterr().err


def test_a_listing_ends_with_its_reader():
    command = f"{sys.executable} {ROOT}/train.py --cfg job | head -2"
    done = subprocess.run(command, shell=True, capture_output=True, text=True)
    assert done.stdout.count("\n") == 2 and not done.stderr


def test_a_limit_on_file_size(tmp_path):
    """Every checkpoint fails; the file is named, and earlier checkpoints are untouched."""

    def limited():
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))

    assert train(tmp_path, overridden("train.steps=2"))[0] == 0
    code, output = train(tmp_path, overridden("train.steps=9", "resume=true"), limited)
    assert code == 6 and "Traceback" not in output and "Errno" not in output, output
    assert "step-00000003.draft/model.safetensors: file too large" in output
    assert verified_steps(tmp_path / "runs/run") == [1, 2]
