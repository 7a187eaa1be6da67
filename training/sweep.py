"""Sweep: what a command line starts: one run, a sweep over several values (-m), or a help listing."""

import io
import os
import re
import sys
from contextlib import redirect_stderr, redirect_stdout
from datetime import datetime

import hydra

from configs.cli import SafeStream, print, reopen_streams, run_command
from configs.compose import CONFIGS, check_flags, expand_sweep, groups, quote_value, resolve
from configs.errors import StopRequested
from model.checkpoint.files import RUNS_DIR
from training.compare import compare

SWEEP, HELP = {"-m", "--multirun"}, {"-h", "--help"}
COMPLETION = {"-sc", "--shell-completion"}
HYDRA = {"-c", "--cfg", "-i", "--info", "-p", "--package", "--resolve", *COMPLETION}
USAGE = """Train a small language model.

    python train.py [group=option ...] [key=value ...]

    python train.py model=gpt2 data=text data.path=book.txt name=book
    python train.py name=book resume=true             continue a run
    python train.py -m model=gpt2,llama               train one model for each combination (--multirun)
    python train.py dry_run=true                      print memory, time and data without training
    python train.py --cfg job                         print all settings of a command line
    eval "$(python train.py -sc install=bash)"        complete options and settings in bash

Config groups and their options (files in configs/):
{groups}

Settings (more in configs/train.yaml and in the options' files):
{settings}
"""


def launch(main, validate, args):
    """The exit code of train.py's command line, which trains by main(overrides)."""
    reopen_streams()
    flags = {arg.partition("=")[0] for arg in args if arg.startswith("-")}
    if flags - SWEEP:
        return run_command(lambda args: show(validate, flags, args), args)
    with redirect_stdout(SafeStream(sys.stdout)):
        if not flags:
            return run_command(main, args)
        return sweep(main, validate, [arg for arg in args if arg not in SWEEP])


def show(validate, flags, args):
    """Help, or one of Hydra's listings."""
    check_flags(args, SWEEP | HELP | HYDRA)
    if flags & HELP:
        listing = "\n".join(f"{group}: {', '.join(options)}" for group, options in groups().items())
        text = (CONFIGS / "train.yaml").read_text(encoding="utf-8")
        blocks = re.findall(r"^name:(?:.+\n)+|^train:(?:.*\n)+?(?=\n)", text, re.MULTILINE)
        print(USAGE.format(groups=listing, settings="".join(blocks).strip()))
        return
    sys.argv[1:] = args
    if not flags & COMPLETION:
        from model.hub.convert import init_config  # only here: it imports torch

        overrides = [arg for arg in args if arg[:1] in "~+" or ("=" in arg and arg[0] != "-")]
        validate(overrides)
        resolved = list(map(quote_value, resolve(overrides, init_config)[1]))
        sys.argv[1:] = resolved + [arg for arg in args if arg not in overrides]
    os.environ["HYDRA_FULL_ERROR"] = "1"  # raise errors, for run_command
    try:
        with redirect_stderr(io.StringIO()) as stderr:
            hydra.main(str(CONFIGS), "train", "1.3")(print)()
    except SystemExit:  # of Hydra's parser, whose usage lists options without effect here
        raise ValueError(stderr.getvalue().rpartition("error: ")[2].strip()) from None


def sweep(main, validate, args):
    """One run after another; a failed one does not stop the others. Returns the first nonzero exit code."""
    jobs = {}
    if code := run_command(lambda args: jobs.update(expand_jobs(validate, args)), args):
        return code
    folder, codes = RUNS_DIR / f"sweep-{datetime.now():%Y-%m-%d_%H-%M-%S-%f}", {}
    for number, (name, overrides) in enumerate(jobs.items(), 1):
        print(f"\n{number} of {len(jobs)}: {name}")
        named = [*overrides, f"name={folder.name}/{name}"]
        codes[name] = run_command(main, named)
        if codes[name] in (StopRequested.exit_code, 130):  # a stopped run stops the sweep
            return codes[name]
    failed = {name: code for name, code in codes.items() if code}
    if done := [folder / name for name in codes if name not in failed and (folder / name).exists()]:
        swept = {
            o.partition("=")[0] for overrides in jobs.values() for o in overrides if o not in args
        }
        codes["comparison"] = run_command(lambda done: compare(done, folder, failed, swept), done)
    return next(filter(None, codes.values()), 0)


def expand_jobs(validate, args):
    """{name: overrides} of each run; all are validated before the first begins."""
    if "RANK" in os.environ:
        raise ValueError(
            "-m trains one model after another; with torchrun, start each run by itself"
        )
    if fixed := [arg for arg in args if re.match(r"[+~]*(name|resume|resume_allow)\b", arg)]:
        raise ValueError(
            f"{fixed[0]}: each run of a sweep is new and has a name of its own; leave it out"
        )
    jobs = {}
    for number, overrides in enumerate(expand_sweep(args), 1):
        validate(overrides)
        swept = "_".join(o.replace("=", "-") for o in overrides if o not in args).replace("e+", "e")
        name = re.sub(r"[^\w.-]+", "-", swept).strip("-.")[:100] or "one"
        jobs[f"{number}_{name}" if name in jobs else name] = overrides
    return jobs
