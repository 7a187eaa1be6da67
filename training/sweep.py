"""Sweep: what a command line starts: one run, a sweep over several values (-m), or a help listing."""

import os
import re
import sys
from contextlib import redirect_stdout
from dataclasses import asdict
from datetime import datetime

from omegaconf import OmegaConf

from configs.cli import ArgumentParser, SafeStream, print, reopen_streams, run_command
from configs.compose import CONFIGS, check_flags, expand_sweep, groups
from configs.errors import StopRequested
from model.checkpoint.files import RUNS_DIR
from training.compare import compare

SWEEP, HELP, SHOW = {"-m", "--multirun"}, {"-h", "--help"}, {"-c", "--cfg"}
USAGE = """Train a small language model.

    python train.py [group=option ...] [key=value ...]

    -m, --multirun   train one model for each combination: -m model=gpt2,llama optimizer.lr=0.01,0.02
    --cfg job        print the config of a command line, with the settings of all its options
    dry_run=true     print memory, time and data of a run without training

== Config groups and their options (files in configs/) ==
{groups}

== Settings (configs/train.yaml; the options' files have more) ==
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
    """The help, or the config of a command line."""
    check_flags(args, SWEEP | HELP | SHOW)
    if flags & HELP:
        listing = "\n".join(f"{group}: {', '.join(options)}" for group, options in groups().items())
        text = (CONFIGS / "train.yaml").read_text(encoding="utf-8")
        print(USAGE.format(groups=listing, settings=text[text.index("\nname:") :].strip()))
        return
    parser = ArgumentParser(add_help=False)
    parser.add_argument("--cfg", "-c", choices=["job"])
    _, overrides = parser.parse_known_args(args)
    print(OmegaConf.to_yaml(OmegaConf.create(asdict(validate(overrides)))))


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
        swept = {o.partition("=")[0] for overrides in jobs.values() for o in overrides if o not in args}
        codes["comparison"] = run_command(lambda done: compare(done, folder, failed, swept), done)
    return next(filter(None, codes.values()), 0)


def expand_jobs(validate, args):
    """{name: overrides} of each run; all are validated before the first begins."""
    if "RANK" in os.environ:
        raise ValueError("-m trains one model after another; with torchrun, start each run by itself")
    if fixed := [arg for arg in args if re.match(r"[+~]*(name|resume|resume_allow)\b", arg)]:
        raise ValueError(f"{fixed[0]}: each run of a sweep is new and has a name of its own; leave it out")
    jobs = {}
    for number, overrides in enumerate(expand_sweep(args), 1):
        validate(overrides)
        swept = "_".join(o.replace("=", "-") for o in overrides if o not in args).replace("e+", "e")
        name = re.sub(r"[^\w.-]+", "-", swept).strip("-.")[:100] or "one"
        jobs[f"{number}_{name}" if name in jobs else name] = overrides
    return jobs
