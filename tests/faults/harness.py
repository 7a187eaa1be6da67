"""What the fault tests share: a run in a forked child, so that it can be ended at any moment. All is imported
and tried once before the forks, so that a trial costs little more than its steps."""

import atexit
import copy
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

import training.monitor
import training.resume
from configs.compose import compose
from model.checkpoint.files import verify
from tests.training.runs import TEXT
from train import main
from training.sweep import launch

STEPS = 4
TIMES = {"seconds", "tokens_per_second", "mfu"}


@cache
def home():
    """A folder with a text and its tokens, where training was tried once; the words of a run on that text."""
    composed = training.config.composed
    remembered = cache(lambda words: composed(list(words)))
    for module in (training.config, training.resume):
        module.composed = lambda words: copy.deepcopy(remembered(tuple(words)))
    training.monitor.draw_run = lambda metrics, picture: None
    room = Path(tempfile.mkdtemp(prefix="faults-"))
    atexit.register(shutil.rmtree, room, ignore_errors=True)
    (room / "book.txt").write_text(TEXT)
    words = ["tokenizer=byte", "data=text", f"data.path={room}/book.txt", f"data.cache={room}/cache"]
    words += [
        "size=tiny",
        "model.context_length=16",
        "model.d_model=16",
        "model.n_layers=1",
        "model.n_heads=2",
    ]
    words += ["train.batch_size=4", "train.micro_batch_size=2", "model.dropout=0.1", "precision=bf16"]
    words += ["eval.max_examples=4", "eval.every=2", "sample.every=3", "log.every=1", "checkpoint.every=1"]
    words += [f"train.steps={STEPS}", "name=run"]
    before = Path.cwd()
    os.chdir(room)
    for more in ([], ["resume=true"]):
        assert launch(main, compose, [*words, *more]) == 0
    os.chdir(before)
    return room, words


def reference():
    """The folder of a run that nothing has ended early."""
    return home()[0] / "runs/run"


def words(*own):
    replaced = {word.partition("=")[0] for word in own}
    return [*(word for word in home()[1] if word.partition("=")[0] not in replaced), *own]


def child(room, words, act=None):
    """The process in which train.py runs with these words, in `room`, after act()."""
    home()
    sys.stdout.flush()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # newer Pythons mind forks beside threads
        pid = os.fork()
    if pid:
        return pid
    code = 99
    try:
        os.chdir(room)
        handle = os.open("said.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(handle, 1)
        os.dup2(handle, 2)
        sys.stdout, sys.stderr = (os.fdopen(n, "w", buffering=1, closefd=False) for n in (1, 2))
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        if act:
            act()
        code = launch(main, compose, list(words))
    except BaseException:
        traceback.print_exc()
    finally:
        with suppress(OSError):
            sys.stdout.flush()
        os._exit(code)


def ended(pid):
    """Its exit code, or minus the signal that ended it."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def ran(room, words, act=None):
    """(exit code, all it said)"""
    code = ended(child(room, words, act))
    return code, (room / "said.txt").read_text(errors="replace")


def spread(trial, items, folder):
    """trial(item, a folder of its own) for all items, on every core; how many there were."""
    items, workers = list(items), os.cpu_count()
    home()
    pids = []
    for n in range(workers):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            pid = os.fork()
        if pid:
            pids.append(pid)
            continue
        code = 0
        try:
            for item in items[n::workers]:
                with tempfile.TemporaryDirectory(dir=folder) as room:
                    try:
                        trial(item, Path(room))
                    except BaseException:
                        said = Path(room, "said.txt")
                        told = said.read_text(errors="replace")[-1500:] if said.exists() else ""
                        Path(folder, f"failure-{n}.txt").write_text(
                            f"{item}: {traceback.format_exc()}\n{told}"
                        )
                        code = 1
                        break
        finally:
            os._exit(code)
    failed = [ended(pid) for pid in pids]
    told = "\n".join(path.read_text() for path in Path(folder).glob("failure-*.txt"))
    assert not any(failed), told
    return len(items)


def rows(path):
    """Of a file of rows, but for its times."""
    found = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return [{key: value for key, value in row.items() if key not in TIMES} for row in found]


def equal(folder, other=None):
    """The run came to the same as one that was never ended: to the byte, but for times."""
    other = other or reference()
    last = (other / "checkpoints/latest").read_text()
    for name in ("latest", "best"):
        assert (folder / "checkpoints" / name).read_text() == (other / "checkpoints" / name).read_text()
    for name in ("model.safetensors", "optimizer.safetensors"):
        place = Path("checkpoints", last.strip(), name)
        assert (folder / place).read_bytes() == (other / place).read_bytes(), name
    for name in ("metrics.jsonl", "samples.jsonl"):
        assert rows(folder / name) == rows(other / name), name
    assert (folder / "config.yaml").read_text() == (other / "config.yaml").read_text()
    litter = [path for path in (folder / "checkpoints").iterdir() if path.suffix]
    assert not litter, litter


def complete(folder):
    """The steps of the checkpoints that show; each of them is whole."""
    places = sorted((folder / "checkpoints").glob("step-????????"))
    for place in places:
        verify(place)
    return [int(place.name[-8:]) for place in places]
