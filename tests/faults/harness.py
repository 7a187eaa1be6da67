"""What the fault tests share: runs in forked children, which can be killed at any moment."""

import atexit
import gc
import os
import shutil
import signal
import sys
import tempfile
import traceback
import warnings
from pathlib import Path

from model.checkpoint import read_config, verify
from model.runs import list_checkpoints, step_of
from tests.training.runs import content, train

HOME = Path(tempfile.mkdtemp(prefix="faults-"))  # of what is made once: see conftest.py
atexit.register(shutil.rmtree, HOME, ignore_errors=True)
RUN = Path("runs/run")
STEPS = 4
OVERRIDES = f"""
    name=run size=tiny precision=bf16 tokenizer=byte
    data=text data.path={HOME}/book.txt data.cache={HOME}/cache
    model.context_length=16 model.d_model=16 model.n_layers=1 model.n_heads=2 model.dropout=0.1 model.bigrams=64
    train.steps={STEPS} train.batch_size=4 train.micro_batch_size=2
    eval.every=2 eval.max_examples=4 sample.every=3 checkpoint.every=1 log.every=1
""".split()


def start(cwd, arguments, act=None, output="output"):
    """The id of a process that calls act() and is then train.py with these arguments, in `cwd`."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forks beside threads
        pid = os.fork()
    if pid:
        return pid
    gc.freeze()  # what the parent has left is not this process's to clean up
    code = 99
    try:
        os.chdir(cwd)
        sys.stdout = sys.stderr = open(output, "w", buffering=1)  # noqa: SIM115
        for number in (1, 2):
            os.dup2(sys.stdout.fileno(), number)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        if act:
            act()
        code = train(*arguments)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def end(pid):
    """The exit code of a process, or minus the signal that killed it."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def run(cwd, *overrides, act=None):
    """(exit code, output) of the usual run with these overrides: of two values, the later one counts."""
    code = end(start(cwd, [*OVERRIDES, *overrides], act))
    return code, (cwd / "output").read_text(errors="replace")


def output_of(cwd, *overrides, act=None, code=0):
    """What the usual run prints, which must end with this exit code."""
    found, output = run(cwd, *overrides, act=act)
    assert found == code, output
    return output


def resume(cwd, *overrides):
    """Continue or start the run, which must come to its end; returns its output."""
    return output_of(cwd, *overrides, "resume=auto")


def valid_steps(folder):
    """The steps of the checkpoints of a run, oldest first, each of them undamaged."""
    checkpoints = list_checkpoints(folder)[::-1]
    for checkpoint in checkpoints:
        verify(checkpoint)
    return [step_of(checkpoint) for checkpoint in checkpoints]


def assert_equal(folder, expected=HOME / RUN):
    """A run came to the same bytes as one that was never interrupted, but for times."""
    found = content(folder)
    for name, value in content(expected).items():
        assert found[name] == value, name
    assert valid_steps(folder)[-1] == STEPS
    unlike = dict.fromkeys(["name", "overrides", "ddp_timeout", "data"])
    assert read_config(folder) | unlike == read_config(expected) | unlike
    drafts = [path.name for path in folder.rglob("*") if path.suffix in (".draft", ".trash")]
    assert not drafts, drafts


def assert_resumes(cwd, *overrides):
    """However the run has ended."""
    resume(cwd, *overrides)
    assert_equal(cwd / RUN)
