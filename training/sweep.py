"""Launch: a command line becomes one run, a sweep of them, or what Hydra shows of the config."""

import os
import re
import sys
from datetime import datetime
from functools import partial

import hydra

from configs.cli import run_command, safe_streams
from configs.compose import CONFIGS, expand_sweep, quote_value, resolve
from configs.errors import StopRequested
from model.checkpoint.files import RUNS_DIR
from model.hub.convert import init_config
from training.compare import compare

SWEEP = {"-m", "--multirun"}
SHOW = {
    "-h",
    "--help",
    "--hydra-help",
    "--version",
    "-c",
    "--cfg",
    "--resolve",
    "-p",
    "--package",
    "-i",
    "--info",
}


def launch(main, asked_for, words):
    """What `python train.py *words` does, and its exit code: main(words, home) for each run, where asked_for
    turns its words into a config and says what cannot be."""
    flags = {word.partition("=")[0] for word in words if word.startswith("-")}
    if odd := sorted(flags - SWEEP - SHOW):
        return run_command(refuse, [odd[0]])
    if flags & SHOW:
        return run_command(partial(show, asked_for), words)
    with safe_streams():
        if flags & SWEEP:
            return sweep(main, asked_for, [word for word in words if word not in SWEEP])
        return run_command(partial(main, runs_dir=RUNS_DIR), words)


def refuse(words):
    meant = words[0].lstrip("-").replace("-", "_")
    raise ValueError(
        f"{words[0]} is not among --help, --cfg job, --info and -m; a setting has no dashes: {meant}=..., "
        "and --cfg job lists them all"
    )


def show(asked_for, words):
    """Hydra's own flags, as Hydra has them."""
    settings = [word for word in words if word[0] in "~+" or ("=" in word and word[0] != "-")]
    flags = [word for word in words if word not in settings]
    asked_for(settings)
    _, settings = resolve(settings, init_config)
    settings = list(map(quote_value, settings))
    os.environ["HYDRA_FULL_ERROR"] = "1"  # what goes wrong is told by command
    sys.argv[1:] = settings + flags
    hydra.main(str(CONFIGS), "train", "1.3")(print)()


def sweep(main, asked_for, words):
    """A run for each combination of values, one after another, below one folder; a failed one does not end
    the others. The first exit code that is not 0."""
    if "RANK" in os.environ:
        return run_command(refuse_ranks, words)
    jobs = []
    if code := run_command(lambda words: jobs.extend(expand_jobs(asked_for, words)), words):
        return code
    swept, codes = f"sweep-{datetime.now():%Y-%m-%d_%H-%M-%S-%f}", {}
    for number, (name, job) in enumerate(jobs, 1):
        print(f"\n{number} of {len(jobs)}: {name}")
        codes[name] = run_command(partial(main, runs_dir=RUNS_DIR), [*job, f"name={swept}/{name}"])
        if codes[name] in (StopRequested.exit_code, 130):  # who stops a run means the sweep
            return codes[name]
    failed = {name: code for name, code in codes.items() if code}
    done = [
        RUNS_DIR / swept / name for name in codes if name not in failed and (RUNS_DIR / swept / name).exists()
    ]
    if done:
        codes["comparison"] = run_command(partial(compare, home=RUNS_DIR / swept, failed=failed), done)
    return next((code for code in codes.values() if code), 0)


def expand_jobs(asked_for, words):
    """(name, words) of each job; what cannot be is said before the first begins."""
    if own := [word for word in words if re.match(r"[+~]*(name|resume|resume_allow)\b", word)]:
        raise ValueError(f"{own[0]}: each run of a sweep is new and has a name of its own; leave it out")
    jobs = expand_sweep(words)
    names = [job_name(job, words) for job in jobs]
    for job in jobs:
        asked_for(job)
    return [
        (name if names.count(name) == 1 else f"{number}_{name}", job)
        for number, (name, job) in enumerate(zip(names, jobs, strict=True), 1)
    ]


def job_name(job, words):
    """What sets a job apart, as the name of a folder."""
    own = "_".join(word.replace("=", "-") for word in job if word not in words)
    return re.sub(r"[^\w.-]+", "-", own.replace("e+", "e")).strip("-.")[:100] or "one"


def refuse_ranks(words):
    raise ValueError(
        "-m trains one model after another in one process; under torchrun start each run by itself"
    )
