"""What the fault tests share: a run in a forked child, so that it can be killed at any moment. Everything is
imported and run once before the forks, so that a trial costs little more than its steps."""

import atexit
import hashlib
import json
import os
import shutil
import signal
import sys
import tempfile
import traceback
import warnings
from contextlib import suppress
from functools import cache
from pathlib import Path

import yaml
from safetensors.torch import load_file, save_file

import training.monitor
from configs.compose import compose
from model.checkpoint.files import verify
from tests.training.runs import TEXT
from train import main
from training.sweep import launch

STEPS = 4
NEWEST = "step-00000004"
FILES = ("model.safetensors", "optimizer.safetensors", "state.json")
TIMES = {"seconds", "tokens_per_second", "mfu"}
OVERRIDES = f"""size=tiny model.context_length=16 model.d_model=16 model.n_layers=1 model.n_heads=2
model.dropout=0.1 train.steps={STEPS} train.batch_size=4 train.micro_batch_size=2 precision=bf16 name=run
eval.max_examples=4 eval.every=2 sample.every=3 log.every=1 checkpoint.every=1""".split()


@cache
def home():
    """A folder with a text, its tokens and a finished run; the overrides of that run."""
    training.monitor.draw_run = lambda metrics, picture: None
    folder = Path(tempfile.mkdtemp(prefix="faults-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    (folder / "book.txt").write_text(TEXT)
    data = [
        "tokenizer=byte",
        "data=text",
        f"data.path={folder}/book.txt",
        f"data.cache={folder}/cache",
    ]
    before = Path.cwd()
    os.chdir(folder)
    for more in ([], ["resume=true"]):
        assert launch(main, compose, [*data, *OVERRIDES, *more]) == 0
    os.chdir(before)
    return folder, [*data, *OVERRIDES]


def reference():
    """The folder of a run that was never interrupted."""
    return home()[0] / "runs/run"


def copy_run(cwd):
    """A copy of that run, for tests to damage."""
    return Path(shutil.copytree(reference(), cwd / "runs/run"))


def overridden(*overrides):
    """The usual overrides, with these."""
    replaced = {override.partition("=")[0] for override in overrides}
    return [*(o for o in home()[1] if o.partition("=")[0] not in replaced), *overrides]


def fork():
    sys.stdout.flush()
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore", DeprecationWarning
        )  # newer Pythons warn of forks beside threads
        return os.fork()


def child(cwd, overrides, act=None, output="output.txt"):
    """The id of a process that runs train.py with these overrides in `cwd`, after act()."""
    home()
    if pid := fork():
        return pid
    code = 99
    try:
        os.chdir(cwd)
        handle = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(handle, 1)
        os.dup2(handle, 2)
        sys.stdout, sys.stderr = (os.fdopen(n, "w", buffering=1, closefd=False) for n in (1, 2))
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        if act:
            act()
        code = launch(main, compose, list(overrides))
    except BaseException:
        traceback.print_exc()
    finally:
        with suppress(OSError):
            sys.stdout.flush()
        os._exit(code)


def exit_code(pid):
    """Of a process, once it has ended; or minus the signal that killed it."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def train(cwd, overrides, act=None):
    """(exit code, output)"""
    code = exit_code(child(cwd, overrides, act))
    return code, (cwd / "output.txt").read_text(errors="replace")


def run_trials(trial, items, folder):
    """trial(item, an empty folder) for all items, on every core; returns how many there were."""
    items, workers, pids = list(items), os.cpu_count(), []
    home()
    for n in range(workers):
        if pid := fork():
            pids.append(pid)
            continue
        code, cwd = 1, folder / f"trial-{n}"
        try:
            for item in items[n::workers]:
                cwd.mkdir()
                trial(item, cwd)
                shutil.rmtree(cwd)
            code = 0
        except BaseException:
            output = cwd / "output.txt"
            tail = output.read_text(errors="replace")[-1500:] if output.exists() else ""
            (folder / f"failure-{n}.txt").write_text(f"{item}: {traceback.format_exc()}\n{tail}")
        finally:
            os._exit(code)
    codes = [exit_code(pid) for pid in pids]
    assert not any(codes), "\n".join(path.read_text() for path in folder.glob("failure-*.txt"))
    return len(items)


def untimed_rows(path):
    """The rows of a jsonl file without their times."""
    rows = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return [{key: value for key, value in row.items() if key not in TIMES} for row in rows]


def settings(folder):
    """config.yaml, but for the name of the run and the order of its overrides."""
    config = yaml.safe_load((folder / "config.yaml").read_text())
    overrides = {
        override for override in config.pop("overrides") if not override.startswith("name=")
    }
    return overrides, json.dumps(config | {"name": None})


def equal(folder, other=None):
    """The run came to the same bytes as one that was never interrupted, but for times."""
    other = other or reference()
    last = (other / "checkpoints/latest").read_text()
    for name in ("latest", "best"):
        assert (folder / "checkpoints" / name).read_text() == (
            other / "checkpoints" / name
        ).read_text()
    for name in FILES:
        path = Path("checkpoints", last.strip(), name)
        assert (folder / path).read_bytes() == (other / path).read_bytes(), name
    for name in ("metrics.jsonl", "samples.jsonl"):
        assert untimed_rows(folder / name) == untimed_rows(other / name), name
    assert settings(folder) == settings(other)
    leftovers = [path for path in (folder / "checkpoints").iterdir() if path.suffix]
    assert not leftovers, leftovers


def verified_steps(folder):
    """The steps of the checkpoints of a run, each of them undamaged."""
    checkpoints = sorted((folder / "checkpoints").glob("step-????????"))
    for checkpoint in checkpoints:
        verify(checkpoint)
    return [int(checkpoint.name[-8:]) for checkpoint in checkpoints]


def write_manifest(checkpoint):
    """One that fits the files as they are now, as an attacker would."""
    files = {}
    for name in FILES:
        data = (checkpoint / name).read_bytes()
        files[name] = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    (checkpoint / "manifest.json").write_text(json.dumps(files))


def edit_tensors(checkpoint, name, edit):
    """Replace the tensors of a file by edit({name: tensor})."""
    save_file(edit(load_file(checkpoint / name)), checkpoint / name)
    write_manifest(checkpoint)
