"""Compare runs, such as those of a sweep (-m), in one table and, with --to, one plot:

python -m training.compare runs/a runs/b
"""

import math
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Collection
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy
from hydra.core.utils import JobReturn, JobStatus
from omegaconf import DictConfig

from configs.cli import ArgumentParser, expand_user, print, report, run_command
from configs.compose import LENGTHS, key_of
from configs.flat import flatten
from configs.registry import Positive, check_value
from data.disk import atomic_write
from model.checkpoint import read_config
from model.runs import RUNS, read_rows
from training.plot import Curve, draw, points
from training.scaling import predict

COLUMNS = {  # field of metrics.jsonl (its last value): (title, format)
    "parameters": ("parameters", ",.0f"),
    "step": ("steps", ",.0f"),
    "tokens": ("tokens", ",.0f"),
    "seconds": ("seconds", ",.0f"),
    "tokens_per_second": ("tokens/s", ",.0f"),
    "loss": ("loss", ".3f"),
    "val_loss": ("val loss", ".3f"),
    "law": ("law", ".3f"),
    "val_bpb": ("bits per byte", ".3f"),
    "val_accuracy": ("accuracy", ".1%"),
    "val_f1": ("F1", ".3f"),
    "val_exact_match": ("exact match", ".1%"),
}


SIZES = ("size", "model.d_model", "model.n_layers", "model.n_heads")
OPTIONS = """
--to PATH       folder for the table and a plot
--fit           fit a scaling law to finished runs of several sizes and lengths
--seconds X     ... and predict the lowest loss that this time can reach
"""


class RunEnd(NamedTuple):
    name: str
    seed: int
    settings: dict  # dotted keys and groups, and the hashes of its code; not its seed
    chosen: list[str]  # the keys of its command line
    last: dict  # the last value of each metric


Group = list[RunEnd]  # runs that differ only in their seed


def runs_of(sweep: Path) -> list[Path]:
    return sorted(path.parent for path in sweep.glob("*/metrics.jsonl"))


def expand_sweeps(paths: list[Path]) -> list[Path]:
    """Replace each sweep by its runs; the other files in its folder are not runs."""
    folders = [path for path in paths if not (path.is_file() and runs_of(path.parent))]
    return list(dict.fromkeys(run for path in folders for run in runs_of(path) or [path]))


def compare(folders: list[Path], home: Path | None = None, fit: Callable | None = None) -> str:
    """The table, best first; in `home`, it is saved with the curves. fit: adds a scaling law."""
    runs = [read_run(folder) for folder in folders]
    law, curves = fit(runs) if fit else ("", [])
    text = table(runs) + law
    if home is None:
        return text

    home.mkdir(parents=True, exist_ok=True)
    field = metric_of(runs)
    for folder, *cells in zip(folders, *differing(runs).values(), strict=True):
        rows = read_rows(folder / "metrics.jsonl")
        curves.append((" ".join(cells) or folder.name, ".-", points(rows, field)))

    draw(curves, home / "comparison.png", COLUMNS[field][0])
    atomic_write(home / "comparison.md", f"{text}\n\n![{COLUMNS[field][0]}](comparison.png)\n")
    return f"\n{text}\n\nsaved to {home / 'comparison.md'} and comparison.png"


def read_run(folder: Path) -> RunEnd:
    stored = read_config(folder)
    choices = stored.pop("choices")
    chosen = list(map(key_of, stored.pop("overrides")))
    settings = flatten(stored) | choices | {"name": None, "seed": None}
    chosen += [key for key in settings if key.startswith("code")]

    last: dict = {}
    for row in read_rows(folder / "metrics.jsonl"):
        last |= row
    settings["dataset"] = last.get("dataset")
    return RunEnd(folder.name, stored["seed"], settings, chosen, last)


def metric_of(runs: list[RunEnd]) -> str:
    """If tokenizers differ, losses per token cannot be compared; bits per byte can."""
    return "val_bpb" if any("val_bpb" in run.last for run in runs) else "val_loss"


def group_seeds(runs: list[RunEnd], field: str) -> list[Group]:
    """Groups of runs that differ only in their seed, the one with the lowest mean first."""
    groups = defaultdict(list)
    seen: Counter = Counter()
    for run in runs:
        settings = repr(run.settings)
        groups[settings, seen[settings, run.seed]].append(run)
        seen[settings, run.seed] += 1  # a copy of a run has a row of its own

    found = list(groups.values())
    losses = [numpy.mean([*values(group, field).values()] or math.nan) for group in found]
    return [found[index] for index in numpy.argsort(losses, kind="stable")]  # NaN is last


def values(group: Group, field: str) -> dict[int, float]:
    """The values of a field, by seed."""
    return {run.seed: run.last[field] for run in group if field in run.last}


def add_law(
    runs: list[RunEnd], at: list[float] | None, seconds: float | None
) -> tuple[str, list[Curve]]:
    """Add a column with the losses of a scaling law. Returns what it says, as text and as points."""
    field = metric_of(runs)
    fields = ("parameters", "tokens", field, "seconds")
    finished = [run for run in runs if run.last.get("full") and {*fields} <= run.last.keys()]

    items = [{(key, repr(run.settings[key])) for key in run.settings} for run in finished]
    others = {key for each in items for key, _ in each - items[0]}
    if other := others - {*SIZES, *LENGTHS}:
        raise ValueError(f"a law is of one model and one text; these runs differ in {min(other)}")

    rows = [[run.last[field] for field in fields] for run in finished]
    text, losses = predict(rows, at, seconds)

    for run, loss in zip(finished, losses, strict=True):
        run.last["law"] = loss

    marks = points([run.last for run in finished], "law")
    count = f"{COLUMNS[field][0]} of {len(finished)} of {len(runs)} runs"
    return f"\n\n{count}\n{text}", [("law", "x", marks)]


def table(runs: list[RunEnd]) -> str:
    """A row per group: the settings that differ, and the metrics."""
    field = metric_of(runs)
    groups = group_seeds(runs, field)
    columns = {"run": list(map(group_name, groups))}
    columns |= differing([group[0] for group in groups])
    for name, (title, form) in COLUMNS.items():
        columns[title] = [cell(values(group, name).values(), form) for group in groups]
    columns[f"{COLUMNS[field][0]} - best"] = [
        difference(group, groups[0], field) for group in groups
    ]
    return markdown(columns)


def differing(runs: list[RunEnd]) -> dict[str, list[str]]:
    """The value of each run for the settings that were given on a command line and differ."""
    columns = {}
    for run in runs:
        for key in run.chosen:
            cells = [str(other.settings.get(key, "-")) for other in runs]
            if len(set(cells)) > 1:
                columns[key] = cells
    return columns


def group_name(group: Group) -> str:
    name = group[0].name
    if len(group) > 1:
        name += f" (n={len(group)})"
    # else some losses are on a part of the validation set
    is_finished = all(run.last.get("full") for run in group)
    return name if is_finished else f"{name} (unfinished)"


def difference(group: Group, best: Group, field: str) -> str:
    """The paired difference, over the seeds that both groups have."""
    own = values(group, field)
    others = values(best, field)
    pairs = [own[seed] - others[seed] for seed in own if seed in others]
    if group is best or len(pairs) < 2:
        return "-"
    return f"{cell(pairs, '+.3f')} ({len(pairs)} pairs)"


def cell(numbers: Collection[float], form: str) -> str:
    """The mean and standard deviation of numbers."""
    if not numbers:
        return "-"
    text = format(numpy.mean([*numbers]), form)
    if len(set(numbers)) > 1:
        text += f" ± {numpy.std([*numbers], ddof=1):{form.lstrip('+')}}"
    return text


def markdown(columns: dict[str, list[str]]) -> str:
    """A Markdown table, without empty columns."""
    padded = []
    for title, cells in columns.items():
        if set(cells) == {"-"}:
            continue
        width = max(map(len, [title, *cells]))
        lines = [title, "-" * width, *cells]
        padded.append([line.ljust(width) for line in lines])
    return "\n".join(f"| {' | '.join(row)} |" for row in zip(*padded, strict=True))


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
    if runs := runs_of(home):
        print(compare(runs, home))


def main() -> None:
    from model.generate.options import add_options

    parser = ArgumentParser("python -m training.compare", description=__doc__)
    parser.add_argument("runs", nargs="+", type=expand_user, metavar="runs/name")
    add_options(parser, OPTIONS)
    metavar = ("PARAMETERS", "TOKENS")
    help = "... and predict the loss of such a run"
    parser.add_argument("--at", nargs=2, type=float, metavar=metavar, help=help)

    options = parser.parse_args()
    for value in (*(options.at or ()), options.seconds):
        check_value("a value of --at or --seconds", value, Positive | None)

    fit = None
    if options.fit or options.at or options.seconds:
        fit = partial(add_law, at=options.at, seconds=options.seconds)
    print(compare(expand_sweeps(options.runs), options.to, fit))


if __name__ == "__main__":
    sys.exit(run_command(main))
