"""Compare: several runs in one table and one plot: python -m training.compare runs/a runs/b"""

import math
import sys
from collections import ChainMap, Counter, defaultdict
from pathlib import Path

import numpy as np

from configs.cli import ArgumentParser, escape, expand_user, print, run_command
from configs.registry import flatten
from data.disk import atomic_write
from model.checkpoint.files import read_config
from training.monitor.metrics import rows
from training.monitor.plot import draw, points

# column, field of metrics.jsonl (its last value), format
COLUMNS = (
    ("steps", "step", "{:,.0f}"),
    ("tokens", "tokens", "{:,.0f}"),
    ("minutes", "minutes", "{:.1f}"),
    ("tokens/s", "tokens_per_second", "{:,.0f}"),
    ("loss", "loss", "{:.3f}"),
    ("val loss", "val_loss", "{:.3f}"),
    ("bits per byte", "val_bpb", "{:.3f}"),
    ("masked accuracy", "val_accuracy", "{:.1%}"),
    ("exact match", "val_exact_match", "{:.1%}"),
)
MAX_SETTINGS = 6  # columns; beyond them, smaller differences between models are left out


def compare(folders, home=None, failed=(), swept=()):
    """Print the table, best first, and save it with the curves. After a sweep, failed is {run: exit code}."""
    home, folders = Path(home or "."), list(dict.fromkeys(map(expand_user, folders)))
    basenames = [folder.name for folder in folders]
    names = {
        folder: folder.name if basenames.count(folder.name) == 1 else str(folder)
        for folder in folders
    }
    runs = list(merge_seeds((names[folder], *read_run(folder)) for folder in folders))
    # NaN is not below infinity, and therefore last
    runs.sort(key=lambda run: min(math.inf, np.mean(run[2].get("val_loss", math.inf))))
    text = "\n\n".join(
        [markdown_table(runs), *edge_hints([config for _, config, _ in runs], swept)]
    )
    if failed:
        text += f"\n\nfailed: {', '.join(f'{name} (exit code {failed[name]})' for name in failed)}"
    curves = [(names[f], ".-", points(rows(f / "metrics.jsonl"), "val_loss")) for f in names]
    draw(curves, home / "comparison.png")
    atomic_write(home / "comparison.md", f"{text}\n\n![validation loss](comparison.png)\n")
    print(f"\n{text}\n\nsaved to {home / 'comparison.md'} and comparison.png")


def read_run(folder):
    """(flat config, last value of each metric)"""
    config = flatten(read_config(folder) | {"name": None, "overrides": None})
    last = {name: value for row in rows(folder / "metrics.jsonl") for name, value in row.items()}
    return config, last | {"minutes": last.get("seconds", 0) / 60}


def merge_seeds(runs):
    """Runs that differ only in their seed become one, with all values of each metric."""
    groups, seen = defaultdict(list), Counter()
    for name, config, last in runs:
        seen[repr(config)] += 1  # copies of a run have rows of their own
        groups[repr(config | {"seed": None}), seen[repr(config)]].append((name, config, last))
    for group in groups.values():
        (name, *others), (config, *_), lasts = zip(*group, strict=True)
        if others:
            name = f"{name} (n={len(group)})"
            config = config | {"seed": [config.get("seed") for _, config, _ in group]}
        yield (
            name,
            config,
            {key: [last[key] for last in lasts if key in last] for key in ChainMap(*lasts)},
        )


def mean_and_std(values, form):
    text = form.format(np.mean(values))
    return text if len(set(values)) == 1 else f"{text} ± {form.format(np.std(values, ddof=1))}"


def markdown_table(runs):
    """A row per run: the settings that differ (only the kind, where kinds differ), and the metrics."""
    configs = [config for _, config, _ in runs]
    keys = dict.fromkeys(key for config in configs for key in config)
    differing = [key for key in keys if len({repr(config.get(key)) for config in configs}) > 1]
    kinds = [key for key in differing if key.endswith(".kind")]
    parts = tuple(key.removesuffix("kind") for key in kinds if key != "model.kind")
    settings = [key for key in differing if key in kinds or not key.startswith(parts)]
    if len(settings) > MAX_SETTINGS:
        settings = [key for key in settings if key in kinds or not key.startswith("model.")]
    columns = [column for column in COLUMNS if any(column[1] in last for *_, last in runs)]
    lines = [["run", *(key[:100] for key in settings), *(title for title, _, _ in columns)]]
    for name, config, last in runs:
        values = [str(config.get(key, "-"))[:100] for key in settings]
        values += [
            mean_and_std(last[field], form) if field in last else "-" for _, field, form in columns
        ]
        lines += [[name, *values]]
    lines = [[escape(cell).replace("|", "\\|") for cell in line] for line in lines]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    lines.insert(1, ["-" * width for width in widths])
    padded = [
        [cell.ljust(width) for cell, width in zip(line, widths, strict=True)] for line in lines
    ]
    return "\n".join(f"| {' | '.join(line)} |" for line in padded)


def edge_hints(configs, swept):
    """Where the best run has the smallest or largest value of a swept setting, the optimum may lie beyond."""
    for key in sorted({*swept} - {"seed"}):
        values = [config.get(key) for config in configs]
        if not all(type(value) in (int, float) for value in values) or min(values) == max(values):
            continue
        if side := {min(values): "smaller", max(values): "larger"}.get(values[0]):
            yield f"{key}={values[0]} is best, at the edge of the values tried; {side} ones may be better"


def main(args):
    parser = ArgumentParser("python -m training.compare", description=__doc__)
    parser.add_argument("folders", nargs="+", type=Path, metavar="runs/name")
    compare(parser.parse_args(args).folders)


if __name__ == "__main__":
    sys.exit(run_command(main, sys.argv[1:]))
