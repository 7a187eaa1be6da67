"""What the fault tests share: runs in forked children, which can be killed at any moment.

Everything is imported and run once before the forks, so that a trial costs little more than its
steps.
"""

import atexit
import gc
import json
import os
import shutil
import signal
import sys
import tempfile
import traceback
import warnings
from functools import cache
from pathlib import Path

from hydra.core.global_hydra import GlobalHydra

import train
import training.log
from configs.cli import run_hydra
from model.checkpoint import list_checkpoints, read_best, read_config, step_of, verify
from tests.training.runs import TEXT, TIMES

STEPS = 4
NEWEST = f"step-{STEPS:08}"
RUN = Path("runs/run")
OVERRIDES = f"""
    name=run size=tiny precision=bf16 data=text tokenizer=byte
    model.context_length=16 model.d_model=16 model.n_layers=1 model.n_heads=2 model.dropout=0.1
    train.steps={STEPS} train.batch_size=4 train.micro_batch_size=2
    eval.every=2 eval.max_examples=4 sample.every=3 checkpoint.every=1 log.every=1
""".split()


# ---- runs


def draw_nothing(rows, path):
    """Matplotlib is slow."""


@cache
def home():
    """A folder with a text, its tokens, and a run that was never interrupted."""
    folder = Path(tempfile.mkdtemp(prefix="faults-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    (folder / "book.txt").write_text(TEXT)
    before, argv = Path.cwd(), sys.argv
    handlers = {number: signal.getsignal(number) for number in train.distributed.STOP_SIGNALS}
    os.chdir(folder)
    draw_run = training.log.draw_run
    training.log.draw_run = draw_nothing
    for more in ([], ["resume=true"]):
        assert command([*data_at(folder), *OVERRIDES, *more]) == 0
    training.log.draw_run = draw_run  # other tests follow
    os.chdir(before)
    sys.argv = argv
    for number, handler in handlers.items():
        signal.signal(number, handler)
    return folder


def data_at(folder):
    return [f"data.path={folder}/book.txt", f"data.cache={folder}/cache"]


def overridden(*overrides):
    """The usual overrides, with these."""
    replaced = {override.partition("=")[0] for override in overrides}
    usual = [*data_at(home()), *OVERRIDES]
    return [o for o in usual if o.partition("=")[0] not in replaced] + list(overrides)


def command(arguments):
    """The exit code of train.py."""
    GlobalHydra.instance().clear()
    sys.argv = ["train.py", *arguments]
    return run_hydra(train.main)


def start(cwd, arguments, act=None, output="output"):
    """The id of a process that calls act() and is then train.py with these arguments, in `cwd`."""
    home()
    sys.stdout.flush()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forks beside threads
        pid = os.fork()
    if pid:
        return pid
    gc.freeze()  # what the parent has left is not this process's to clean up
    code = 99
    training.log.draw_run = draw_nothing
    try:
        os.chdir(cwd)
        handle = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        for number in (1, 2):
            os.dup2(handle, number)
        sys.stdout = os.fdopen(1, "w", buffering=1, closefd=False)
        sys.stderr = os.fdopen(2, "w", buffering=1, closefd=False)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        if act:
            act()
        code = command(arguments)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def end(pid):
    """The exit code of a process, or minus the signal that killed it."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def run(cwd, *overrides, act=None):
    """(exit code, output) of the usual run with these overrides."""
    code = end(start(cwd, overridden(*overrides), act))
    return code, (cwd / "output").read_text(errors="replace")


def resume(cwd, *overrides):
    """Continue or start the run, which must come to its end; returns its output."""
    code, output = run(cwd, *overrides, "resume=auto")
    assert code == 0, output
    return output


# ---- what they have written


def copy_run(cwd):
    """A copy of the uninterrupted run, for tests to damage."""
    return Path(shutil.copytree(home() / RUN, cwd / RUN))


def verified_steps(folder):
    """The steps of the checkpoints of a run, oldest first, each of them undamaged."""
    checkpoints = list_checkpoints(folder)[::-1]
    for checkpoint in checkpoints:
        verify(checkpoint)
    return [step_of(checkpoint) for checkpoint in checkpoints]


def untimed(row):
    return {name: value for name, value in row.items() if name not in TIMES}


def read_lines(path):
    """The rows of a log that was never cut off."""
    return [untimed(json.loads(line)) for line in path.read_text().splitlines()]


def assert_equal_weights(folder, expected=None):
    for name in ("model.safetensors", "optimizer.safetensors"):
        path = Path("checkpoints", NEWEST, name)
        assert (folder / path).read_bytes() == ((expected or home() / RUN) / path).read_bytes()


def assert_equal(folder, expected=None):
    """A run came to the same bytes as one that was never interrupted, but for times."""
    expected = expected or home() / RUN
    assert_equal_weights(folder, expected)
    assert read_best(folder) == read_best(expected)
    for name in ("metrics.jsonl", "samples.jsonl", f"checkpoints/{NEWEST}/state.json"):
        found = read_lines(folder / name)
        assert found == read_lines(expected / name), name
    assert verified_steps(folder)[-1] == STEPS
    unlike = dict.fromkeys(["name", "overrides", "ddp_timeout"])
    assert read_config(folder) | unlike == read_config(expected) | unlike
    drafts = [path.name for path in folder.rglob("*") if path.suffix in (".draft", ".trash")]
    assert not drafts, drafts
