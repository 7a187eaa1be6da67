"""Compare runs, such as those of a sweep (-m), in one table and, with --to, one plot:

python -m training.compare runs/a runs/b
"""

import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy
from hydra.core.utils import JobReturn, JobStatus

from configs.cli import ArgumentParser, expand_user, print0, report, run_command
from configs.compose import LENGTHS, key_of
from configs.flat import flatten
from configs.registry import Positive, check_value
from data.disk import atomic_write
from model.checkpoint import read_config
from model.runs import read_rows
from training.plot import draw, points
from training.scaling import ScalingLaw

COLUMNS = {  # field of metrics.jsonl (its last value): (title, format)
    "parameters": ("parameters", ",.0f"),
    "step": ("steps", ",.0f"),
    "tokens": ("tokens", ",.0f"),
    "seconds": ("seconds", ",.0f"),
    "tokens_per_second": ("tokens/s", ",.0f"),
    "loss": ("loss", ".3f"),
    "val_loss": ("val loss", ".3f"),
    "law": ("law", ".3f"),  # of no file: add_law() adds it
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
    folder: Path
    seed: int
    settings: dict[str, str]  # by dotted key, group, or file of its code; not its name and seed
    chosen: list[str]  # the keys of its command line, and of its code
    last: dict  # the last value of each metric


Group = list[RunEnd]  # runs that differ only in their seed


def runs_of(sweep: Path) -> list[Path]:
    return sorted(path.parent for path in sweep.glob("*/metrics.jsonl"))


def read_runs(paths: list[Path]) -> list[RunEnd]:
    """Read runs, and of each sweep all its runs."""
    folders = []
    for path in paths:
        # runs/sweep/* may also name files such as comparison.md
        if not (path.is_file() and runs_of(path.parent)):
            folders.extend(runs_of(path) or [path])
    return [read_run(folder) for folder in dict.fromkeys(folders)]


def read_run(folder: Path) -> RunEnd:
    stored = read_config(folder)
    choices = stored.pop("choices")
    named = [*map(key_of, stored.pop("overrides")), "code", "dataset"]
    last: dict = {}
    for row in read_rows(folder / "metrics.jsonl"):
        last |= row

    settings = flatten(stored) | choices
    settings |= {"name": None, "seed": None, "dataset": f"{last.get('dataset', ''):.8}"}
    # a group such as size is a key itself; data.sources=... stands for all keys in it
    chosen = [
        key
        for name in named
        for key in settings
        if key == name or (name not in settings and key.startswith(f"{name}."))
    ]
    texts = {key: str(value) for key, value in settings.items()}
    return RunEnd(folder, stored["seed"], texts, chosen, last)


def metric_of(runs: list[RunEnd]) -> str:
    """If tokenizers differ, losses per token cannot be compared; bits per byte can."""
    return "val_bpb" if any("val_bpb" in run.last for run in runs) else "val_loss"


def add_law(runs: list[RunEnd], at: list[float] | None, seconds: float | None) -> str:
    """Add a column to the table: the losses of a scaling law. Returns what the law says."""
    metric = metric_of(runs)
    fields = ("parameters", "tokens", metric, "seconds")
    finished = [run for run in runs if run.last.get("full") and {*fields} <= run.last.keys()]

    settings = [run.settings.items() for run in finished]
    others = {key for items in settings for key, _ in items - settings[0]}
    if other := others - {*SIZES, *LENGTHS}:
        raise ValueError(f"a law is of one model and one text; these runs differ in {min(other)}")

    law = ScalingLaw([[run.last[field] for field in fields] for run in finished])
    for run, loss in zip(finished, law.fitted.tolist(), strict=True):
        run.last["law"] = loss

    lines = [f"{COLUMNS[metric][0]} of {len(finished)} of {len(runs)} runs", law.describe()]
    if at:
        lines.append(law.expect(*at))
    if seconds:
        lines.append(law.expect_in(seconds))
    return "\n\n" + "\n".join(lines)


def table(runs: list[RunEnd]) -> str:
    """A row per group, the one with the lowest mean loss first: the settings that differ, and the
    metrics."""
    metric = metric_of(runs)
    groups = group_seeds(runs)
    means = [numpy.mean([*values(group, metric).values()] or numpy.nan) for group in groups]
    groups = [groups[index] for index in numpy.argsort(means, kind="stable")]  # NaN is last

    columns = {"run": list(map(group_name, groups))}
    columns |= differing([group[0] for group in groups])
    for name, (title, form) in COLUMNS.items():
        columns[title] = [cell([*values(group, name).values()], form) for group in groups]

    losses = [values(group, metric) for group in groups]
    columns[f"{COLUMNS[metric][0]} - best"] = [difference(own, losses[0]) for own in losses]
    return markdown(columns)


def group_seeds(runs: list[RunEnd]) -> list[Group]:
    """Groups of runs that differ only in their seed. A copy of a run has a group of its own."""
    groups: list[Group] = []
    for run in runs:
        for group in groups:
            seeds = [other.seed for other in group]
            if group[0].settings == run.settings and run.seed not in seeds:
                group.append(run)
                break
        else:
            groups.append([run])
    return groups


def values(group: Group, field: str) -> dict[int, float]:
    """The values of a field, by seed."""
    return {run.seed: run.last[field] for run in group if field in run.last}


def group_name(group: Group) -> str:
    name = group[0].folder.name
    if len(group) > 1:
        name += f" (n={len(group)})"
    if not all(run.last.get("full") for run in group):  # some losses are on a part of the set
        name += " (unfinished)"
    return name


def differing(runs: list[RunEnd]) -> dict[str, list[str]]:
    """The value of each run for the settings that were given on a command line and differ."""
    columns = {}
    for run in runs:
        for key in run.chosen:
            cells = [other.settings.get(key, "-") for other in runs]
            if len(set(cells)) > 1:
                columns[key] = cells
    return columns


def cell(numbers: list[float], form: str) -> str:
    """The mean and standard deviation of numbers."""
    if not numbers:
        return "-"
    text = format(numpy.mean(numbers), form)
    if len(set(numbers)) > 1:
        text += f" ± {numpy.std(numbers, ddof=1):{form.lstrip('+')}}"
    return text


def difference(own: dict[int, float], best: dict[int, float]) -> str:
    """The paired difference, over the seeds that both groups have."""
    pairs = [own[seed] - best[seed] for seed in own if seed in best]
    if own is best or len(pairs) < 2:
        return "-"
    return f"{cell(pairs, '+.3f')} ({len(pairs)} pairs)"


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


def save(runs: list[RunEnd], home: Path, law: str = "") -> str:
    """Write the table, what a law says, and the curves into a folder. Returns what to print."""
    metric = metric_of(runs)
    title, _ = COLUMNS[metric]
    curves = [("law", "x", points([run.last for run in runs], "law"))]
    for run, *cells in zip(runs, *differing(runs).values(), strict=True):
        rows = read_rows(run.folder / "metrics.jsonl")
        curves.append((" ".join(cells) or run.folder.name, ".-", points(rows, metric)))

    home.mkdir(parents=True, exist_ok=True)
    draw(curves, home / "comparison.png", title)
    text = table(runs) + law
    atomic_write(home / "comparison.md", f"{text}\n\n![{title}](comparison.png)\n")
    return f"\n{text}\n\nsaved to {home / 'comparison.md'} and comparison.png"


def end_of_run(hydra: Any, job_return: JobReturn) -> None:
    """After each run of a sweep, print the table of all its runs so far. (Hydra does not call
    on_multirun_end if a run has failed.)"""
    if job_return.status == JobStatus.FAILED:
        print0(f"\nrun {Path(hydra.runtime.output_dir).name} failed", file=sys.stderr)
        # Hydra raises it when the result of this run is read
        job_return.return_value = SystemExit(report(job_return._return_value))

    home = Path(hydra.sweep.dir)
    if folders := runs_of(home):
        print0(save(read_runs(folders), home))


def main() -> None:
    from model.generate.options import add_options  # not in training, which imports this file

    parser = ArgumentParser("python -m training.compare", description=__doc__)
    parser.add_argument("runs", nargs="+", type=expand_user, metavar="runs/name")
    add_options(parser, OPTIONS)
    help = "... and predict the loss of such a run"
    parser.add_argument("--at", nargs=2, type=float, metavar=("PARAMETERS", "TOKENS"), help=help)

    options = parser.parse_args()
    for value in (*(options.at or ()), options.seconds):
        check_value("a value of --at or --seconds", value, Positive | None)

    runs = read_runs(options.runs)
    law = ""
    if options.fit or options.at or options.seconds:
        law = add_law(runs, options.at, options.seconds)
    print0(save(runs, options.to, law) if options.to else table(runs) + law)


if __name__ == "__main__":
    sys.exit(run_command(main))
