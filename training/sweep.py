"""Sweep: the runs of -m, and the callback of Hydra that compares them."""

import sys
from pathlib import Path
from typing import Any

from hydra.core.utils import JobReturn, JobStatus
from hydra.experimental.callback import Callback
from hydra.types import RunMode
from omegaconf import DictConfig

from configs.cli import print, report
from model.checkpoint import RUNS, read_config
from training.compare import compare, runs_of


def place_in_sweep(node: DictConfig, hydra: Any) -> tuple[str, bool | str]:
    """(the name of this run of a sweep; whether it may be resumed: a sweep that is repeated goes on
    with the runs that it did not finish)"""
    if node.resume or node.name:
        reason = "each run of a sweep is new, with a name of its own"
        raise ValueError(f"-m takes neither name= nor resume=: {reason}")
    run = Path(hydra.runtime.output_dir)
    if RUNS.absolute() not in run.parents:
        raise ValueError(f"hydra.sweep.dir is {hydra.sweep.dir}; choose a folder in {RUNS}/")
    name = run.relative_to(RUNS.absolute()).as_posix()
    if not (run / "config.yaml").exists():
        return name, False
    if read_config(RUNS / name)["overrides"] != list(hydra.overrides.task):
        hint = "choose another hydra.sweep.dir"
        raise ValueError(f"{RUNS / name} already exists, with other settings; {hint}")
    return name, "auto"


class Compare(Callback):
    """After each run of a sweep: the table of all its runs so far. (Hydra does not call
    on_multirun_end if a run has failed.) The error of any run is reported here, because Hydra
    prints a line of its own before it raises one."""

    def on_job_end(self, config: DictConfig, job_return: JobReturn, **options: Any) -> None:
        failed = job_return.status == JobStatus.FAILED
        if config.hydra.mode != RunMode.MULTIRUN:
            if failed:
                raise SystemExit(report(job_return._return_value))
            return
        if failed:
            print(f"\n{Path(config.hydra.runtime.output_dir).name} failed", file=sys.stderr)
            # Hydra raises it when somebody asks for the result of this run
            job_return.return_value = SystemExit(report(job_return._return_value))
        home = Path(config.hydra.sweep.dir)
        if runs := runs_of(home):
            print(compare(runs, home))
