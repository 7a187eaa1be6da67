"""Compare runs in one table and, with --to, one plot: python -m training.compare runs/a runs/b"""

import math
import sys
from collections import defaultdict
from pathlib import Path
from statistics import mean, stdev
from typing import Any, NamedTuple

from hydra.core.utils import JobReturn, JobStatus
from hydra.experimental.callback import Callback
from hydra.types import RunMode
from omegaconf import DictConfig

from configs.cli import ArgumentParser, escape, expand_user, print, report, run_command
from configs.registry import flatten
from data.disk import atomic_write
from model.checkpoint import read_config
from training.log import read_rows
from training.plot import Curve, draw, points

COLUMNS = {  # field of metrics.jsonl (its last value): (title, format)
    "step": ("steps", "{:,.0f}"),
    "tokens": ("tokens", "{:,.0f}"),
    "seconds": ("seconds", "{:,.0f}"),
    "tokens_per_second": ("tokens/s", "{:,.0f}"),
    "loss": ("loss", "{:.3f}"),
    "val_loss": ("val loss", "{:.3f}"),
    "val_bpb": ("bits per byte", "{:.3f}"),
    "val_accuracy": ("masked accuracy", "{:.1%}"),
    "val_exact_match": ("exact match", "{:.1%}"),
}


class Result(NamedTuple):
    """Of one run, or of several that differ only in their seed."""

    name: str
    settings: dict[str, Any]  # dotted keys and groups
    chosen: list[str]  # those of its command line
    code: str  # the hash of its source files
    last: dict[str, list[float]]  # the last value of each metric, of each seed

    @property
    def val_loss(self) -> float:
        loss = mean(self.last.get("val_loss", [math.inf]))
        return math.inf if math.isnan(loss) else loss


class Compare(Callback):
    """Of a sweep: after each run, the table of all runs so far. (Hydra does not call
    on_multirun_end if a run has failed.)"""

    def on_job_end(self, config: DictConfig, job_return: JobReturn, **options: Any) -> None:
        if config.hydra.mode != RunMode.MULTIRUN:
            return
        if job_return.status == JobStatus.FAILED:
            print(f"\n{Path(config.hydra.runtime.output_dir).name} failed", file=sys.stderr)
            report(job_return._return_value)
        home = Path(config.hydra.sweep.dir)
        runs = sorted((path.parent for path in home.glob("*/metrics.jsonl")), key=run_number)
        if runs:
            swept = [override.partition("=")[0] for override in config.hydra.overrides.task]
            print(compare(runs, home, swept))


def run_number(run: Path) -> tuple[int, str]:
    return (int(run.name) if run.name.isdecimal() else sys.maxsize, run.name)


def compare(runs: list[Path], home: Path | None = None, swept: list[str] | None = None) -> str:
    """The table, best first; in `home`, it is saved with the curves."""
    results = merge_seeds([read_run(run) for run in dict.fromkeys(runs)])
    lines = [table(results)]
    if len({result.code for result in results}) > 1:
        lines.append("these runs were trained with different code: see environment.txt of each")
    lines += edge_hints([result.settings for result in results], swept or [])
    text = "\n\n".join(lines)
    if home is None:
        return text
    home.mkdir(parents=True, exist_ok=True)
    curves = []
    for run in runs:
        rows = list(read_rows(run / "metrics.jsonl"))
        curves.append(Curve(run.name, ".-", points(rows, "val_loss")))
    draw(curves, home / "comparison.png")
    atomic_write(home / "comparison.md", f"{text}\n\n![validation loss](comparison.png)\n")
    return f"\n{text}\n\nsaved to {home / 'comparison.md'} and comparison.png"


def read_run(run: Path) -> Result:
    stored = read_config(run) | {"name": None}
    choices, overrides = stored.pop("choices"), stored.pop("overrides")
    settings = flatten(stored) | choices
    chosen = [override.lstrip("+~").partition("=")[0] for override in overrides]
    environment = run / "environment.txt"
    lines = environment.read_text(encoding="utf-8").splitlines() if environment.exists() else []
    code = next((line for line in lines if line.startswith("code ")), "")
    last: dict[str, Any] = {}
    for row in read_rows(run / "metrics.jsonl"):
        last |= row
    numbers = {name: [last[name]] for name in COLUMNS if isinstance(last.get(name), int | float)}
    return Result(run.name, settings, chosen, code, numbers)


def merge_seeds(results: list[Result]) -> list[Result]:
    """Runs of the same code that differ only in their seed become one, with all values. Best
    first."""
    groups: dict[str, list[Result]] = defaultdict(list)
    for result in results:
        groups[repr((result.code, result.settings | {"seed": None}))].append(result)
    merged = []
    for group in groups.values():
        seeds = [result.settings.get("seed") for result in group]
        if len(set(seeds)) < len(seeds):  # copies of a run have rows of their own
            merged += group
            continue
        first = group[0]
        last: dict[str, list[float]] = defaultdict(list)
        for result in group:
            for name, values in result.last.items():
                last[name] += values
        name = f"{first.name} (n={len(group)})" if len(group) > 1 else first.name
        merged.append(first._replace(name=name, last=dict(last)))
    return sorted(merged, key=lambda result: result.val_loss)


def table(results: list[Result]) -> str:
    """A row per run: the settings that differ, and the metrics."""
    settings = differing_settings(results)
    fields = [field for field in COLUMNS if any(field in result.last for result in results)]
    lines = [["run", *settings, *(COLUMNS[field][0] for field in fields)]]
    for result in results:
        values = [str(result.settings.get(key, "-"))[:100] for key in settings]
        values += [cell(result.last.get(field, []), COLUMNS[field][1]) for field in fields]
        lines.append([result.name, *values])
    return markdown(lines)


def differing_settings(results: list[Result]) -> list[str]:
    """Those that were given on a command line and differ. Others follow from them, but for those
    that rows differ in which would read alike: by a file that has changed, perhaps."""

    def values(key: str) -> list[str]:
        return [repr(result.settings.get(key)) for result in results]

    chosen = dict.fromkeys(key for result in results for key in result.chosen)
    unseen = ("name", "seed")
    columns = [key for key in chosen if key not in unseen and len(set(values(key))) > 1]
    for key in dict.fromkeys(key for result in results for key in result.settings):
        shown = list(zip(*map(values, columns), strict=True)) if columns else [()] * len(results)
        with_key = set(zip(shown, values(key), strict=True))
        if key not in unseen and len(with_key) > len(set(shown)):
            columns.append(key)
    return columns


def cell(values: list[float], form: str) -> str:
    if not values:
        return "-"
    text = form.format(mean(values))
    return text if len(set(values)) == 1 else f"{text} ± {form.format(stdev(values))}"


def markdown(lines: list[list[str]]) -> str:
    lines = [[escape(text).replace("|", "\\|") for text in line] for line in lines]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    lines.insert(1, ["-" * width for width in widths])
    rows = []
    for line in lines:
        padded = [text.ljust(width) for text, width in zip(line, widths, strict=True)]
        rows.append(f"| {' | '.join(padded)} |")
    return "\n".join(rows)


def edge_hints(configs: list[dict[str, Any]], swept: list[str]) -> list[str]:
    """Where the best run has the smallest or largest value of a swept setting, the optimum may lie
    beyond."""
    hints = []
    for key in sorted({*swept} - {"seed"}):
        values: list[Any] = [config.get(key) for config in configs]
        if not all(type(value) in (int, float) for value in values) or len(set(values)) < 2:
            continue
        side = {min(values): "smaller", max(values): "larger"}.get(values[0])
        if side:
            best = f"{key}={values[0]} is best, at the edge of the values tried"
            hints.append(f"{best}; {side} ones may be better")
    return hints


def main() -> None:
    parser = ArgumentParser("python -m training.compare", description=__doc__)
    parser.add_argument("runs", nargs="+", type=expand_user, metavar="runs/name")
    parser.add_argument(
        "--to", type=expand_user, metavar="FOLDER", help="save the table and a plot"
    )
    options = parser.parse_args()
    print(compare(options.runs, options.to))


if __name__ == "__main__":
    sys.exit(run_command(main))
