"""Sweep: what happens before and after each of the runs that -m starts."""

import sys
from pathlib import Path
from typing import Any

from hydra.core.utils import JobReturn, JobStatus
from omegaconf import DictConfig

from configs.cli import print, report
from model.checkpoint import read_config
from model.runs import RUNS
from training.compare import read_run, runs_of, save


def place_in_sweep(node: DictConfig, hydra: Any) -> tuple[str, bool]:
    """Returns (the name of this run of a sweep; whether it is resumed: a repeated sweep continues
    its unfinished runs)."""
    if node.resume or node.name:
        error = ValueError("-m cannot be combined with name= or resume=: each run gets a new name")
        raise SystemExit(report(error))  # Hydra would go on with the next run

    run = Path(hydra.runtime.output_dir)
    if RUNS.absolute() not in run.parents:
        raise ValueError(f"hydra.sweep.dir is {hydra.sweep.dir}; choose a folder in {RUNS}/")

    name = run.relative_to(RUNS.absolute()).as_posix()
    is_started = (run / "config.yaml").exists()
    if is_started and read_config(RUNS / name)["overrides"] != list(hydra.overrides.task):
        raise ValueError(
            f"{RUNS / name} already exists, with other settings; choose another hydra.sweep.dir"
        )
    return name, is_started


def end_of_run(hydra: Any, job_return: JobReturn) -> None:
    """After each run of a sweep, print the table of all its runs so far. (Hydra does not call
    on_multirun_end if a run has failed.)"""
    if job_return.status == JobStatus.FAILED:
        print(f"\nrun {Path(hydra.runtime.output_dir).name} failed", file=sys.stderr)
        # Hydra raises it when the result of this run is read
        job_return.return_value = SystemExit(report(job_return._return_value))

    home = Path(hydra.sweep.dir)
    if folders := runs_of(home):
        print(save(list(map(read_run, folders)), home))
