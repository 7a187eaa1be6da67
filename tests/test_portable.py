"""Nothing needs POSIX: a run trains, resumes and is sampled where its calls are missing, as on
Windows."""

import os
import subprocess
import sys
from pathlib import Path

from tests.parts import ROOT
from tests.training.runs import with_usual

# what Windows does not have
MODULES = "fcntl grp pwd readline resource termios tty"
OS = "O_DIRECTORY O_NOFOLLOW chown fchmod fork getuid mkfifo pread pwrite sched_getaffinity sysconf"
SIGNALS = "SIGALRM SIGCHLD SIGHUP SIGKILL SIGPIPE SIGQUIT SIGUSR1 SIGUSR2 alarm setitimer"

CHILD = """
import asyncio, multiprocessing.util, sys
import filelock, hydra, tokenizers, torch
from tests import test_portable
test_portable.take_away()
test_portable.act(sys.argv[1:])
"""


def take_away():
    """Leave this process what it would have on Windows, and have files behave as they do there."""
    import platform
    import shutil
    import signal

    sys.modules |= dict.fromkeys(MODULES.split())
    for module, names in ((os, OS), (signal, SIGNALS)):
        for name in names.split():
            if hasattr(module, name):
                delattr(module, name)
    signal.Signals = [number for number in signal.Signals if hasattr(signal, number.name)]
    platform.libc_ver = lambda: ("", "")
    shutil._use_fd_functions = False
    renaming = ("rename", "replace", "unlink", "rmdir")
    real = {name: getattr(os, name) for name in ("open", "fsync", *renaming)}

    def open_file(path, *options):
        if os.path.isdir(path):
            raise PermissionError(13, "Permission denied", str(path))
        return real["open"](path, *options)

    def fsync(handle):
        flags = Path(f"/proc/self/fdinfo/{handle}").read_text().split()[3]
        if not int(flags, 8) & (os.O_WRONLY | os.O_RDWR):
            raise OSError(9, "Bad file descriptor")
        real["fsync"](handle)

    def unless_open(name):
        def call(path, *new):
            below = os.path.join(os.path.realpath(path), "")
            for link in Path("/proc/self/fd").iterdir():
                if os.path.join(os.path.realpath(link), "").startswith(below):
                    raise PermissionError(13, "the file is open", str(path))
            if name == "rename" and os.path.exists(new[0]):
                raise FileExistsError(17, "File exists", str(path))
            real[name](path, *new)

        return call

    os.open = open_file
    os.fsync = fsync
    for name in renaming:
        setattr(os, name, unless_open(name))


def act(overrides):
    import importlib

    from tests.test_house import MODULES

    for name in MODULES.keys() - {"training.harness"}:  # which needs lm_eval
        importlib.import_module(name)
    import sample
    import train
    from configs.cli import run_command, run_hydra

    for more in ([], ["train.steps=4", "resume=true"]):
        sys.argv = ["train.py", *overrides, *more]
        assert run_hydra(train.main) == 0
    prompt = ["--run", "runs/run", "--prompt", "a text", "--max-new-tokens", "3"]
    assert run_command(lambda: sample.main(prompt)) == 0


def test_train_resume_and_sample(tmp_path):
    text = "a text with é and ✓, don't you see\n" * 300
    (tmp_path / "book.txt").write_text(text, encoding="utf-8")
    run = ["train.steps=2", "checkpoint.every=1", "checkpoint.keep=1", "name=run"]
    command = [sys.executable, "-c", CHILD, *with_usual(["tokenizer=char", *run])]
    # a default encoding that is not UTF-8, as on Windows
    own = {"PYTHONPATH": str(ROOT), "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    options = {"cwd": tmp_path, "env": os.environ | own}
    done = subprocess.run(command, capture_output=True, encoding="utf-8", **options)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "warning" not in done.stderr, done.stderr
    checkpoints = tmp_path / "runs/run/checkpoints"
    assert (checkpoints / "best").read_bytes() == b"step-00000004\n"
    assert (checkpoints / "step-00000004").is_dir()
