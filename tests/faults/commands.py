"""The commands that read the folder of a run, each in this process."""

import signal
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import model.hub.__main__ as hub
import sample
from configs.cli import run_command
from configs.compose import compose
from tests.faults.harness import home
from train import main
from training.compare import read_run
from training.sweep import launch

PROMPT = ["--run", "runs/run", "--prompt", "a", "--max-new-tokens", "2"]


def init_from():
    data = [o for o in home()[1] if o.startswith(("data", "train", "eval"))]
    return launch(main, compose, [*data, "init_from=runs/run", "dry_run=true"])


COMMANDS = {
    "resume": lambda: launch(main, compose, ["name=run", "resume=true", "dry_run=true"]),
    "init_from": init_from,
    "sample": lambda: run_command(sample.main, PROMPT),
    "compare": lambda: run_command(lambda args: read_run(Path("runs/run")), []),
    "export": lambda: run_command(hub.main, ["export", "--run", "runs/run", "--to", "exported"]),
}


def blocked(*_):
    raise TimeoutError("the command is blocked")


def attempt(command):
    """(exit code, error) of a command, which ends in time, with 0 or with one sentence and its code."""
    before = signal.signal(signal.SIGALRM, blocked)
    with open("output.txt", "w+", encoding="utf-8") as file:
        signal.alarm(60)
        with redirect_stdout(file), redirect_stderr(file):
            code = COMMANDS[command]()
        signal.alarm(0)
        file.seek(0)
        output = file.read()
    signal.signal(signal.SIGALRM, before)
    errors = [line for line in output.splitlines() if line.startswith("error: ")]
    assert code in (0, 2, 3, 4) and len(errors) == bool(code) and len("".join(errors)) < 700, (
        command,
        output,
    )
    return code, "".join(errors)
