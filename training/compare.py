"""Compare: several runs in one table and one plot.

python -m training.compare runs/a runs/b
"""

import argparse
import sys
from pathlib import Path

from omegaconf import OmegaConf

from configs.cli import run_command
from training.monitor.metrics import rows
from training.monitor.plot import draw, points

# the column, the field of metrics.jsonl whose last value it shows, and how
COLUMNS = (
    ("steps", "step", "{:,}"),
    ("tokens", "tokens", "{:,}"),
    ("minutes", "minutes", "{:.1f}"),
    ("tokens/s", "tokens_per_second", "{:,.0f}"),
    ("loss", "loss", "{:.3f}"),
    ("validation", "val_loss", "{:.3f}"),
    ("bits per byte", "val_bpb", "{:.3f}"),
    ("accuracy", "val_accuracy", "{:.1%}"),
    ("exact", "val_exact", "{:.1%}"),
)
NONE = "-"
WIDEST = 6  # columns of settings; where there are more, the smaller differences of the models are left out


def compare(folders, home=None, failed=()):
    """Print the table, best first; keep it as comparison.md, and the curves as comparison.png: in `home`, or
    where one stands. failed: {name: exit code} of runs that came to nothing."""
    found = {folder: read(folder) for folder in map(Path, folders) if folder.is_dir() or missing(folder)}
    home = Path(home or ".")
    ordered = sorted(found, key=lambda folder: found[folder][1].get("val_loss", float("inf")))
    names = {folder: name_among(folder, ordered) for folder in ordered}
    table = aligned(cells({names[folder]: found[folder] for folder in ordered}))
    if failed:
        table += f"\n\nfailed: {', '.join(f'{name} (exit code {failed[name]})' for name in failed)}"
    curves = [(names[folder], "o-", points(rows(folder / "metrics.jsonl"), "val_loss")) for folder in ordered]
    draw(curves, home / "comparison.png")
    (home / "comparison.md").write_text(table + "\n\n![validation loss](comparison.png)\n", encoding="utf-8")
    print(f"\n{table}\n\nkept in {home / 'comparison.md'} and comparison.png")


def name_among(folder, folders):
    """Its own name, or where another has the same the whole path."""
    return folder.name if sum(other.name == folder.name for other in folders) == 1 else str(folder)


def missing(folder):
    raise ValueError(f"there is no folder {folder}; give the folders of runs, such as runs/*")


def read(folder):
    """(what it was asked for, the last value of each number it has told)"""
    config, metrics = folder / "config.yaml", folder / "metrics.jsonl"
    if not config.exists() or not metrics.exists():
        raise ValueError(f"{folder} is no folder of a run: it lacks config.yaml or metrics.jsonl")
    last = {}
    for row in rows(metrics):
        last |= {name: value for name, value in row.items() if value is not None}
    last["minutes"] = last.get("seconds", 0) / 60
    return dict(flat(OmegaConf.load(config))), last


def flat(node, path=""):
    for key, value in node.items():
        if OmegaConf.is_dict(value):
            yield from flat(value, f"{path}{key}.")
        elif f"{path}{key}" != "name":
            yield f"{path}{key}", value


def cells(found):
    """A row for each run: where its config differs from others, then the numbers that any of them has."""
    configs = [config for config, _ in found.values()]
    differing = differences(configs)
    shown = [column for column in COLUMNS if any(column[1] in last for _, last in found.values())]
    yield ["run", *differing, *(title for title, _, _ in shown)]
    for name, (config, last) in found.items():
        asked = [str(config.get(key, NONE)) for key in differing]
        yield [
            name,
            *asked,
            *(form.format(last[field]) if field in last else NONE for _, field, form in shown),
        ]


def differences(configs):
    """The keys whose values differ, but not the options of parts whose very kinds do."""
    keys = dict.fromkeys(key for config in configs for key in config)
    differing = [key for key in keys if len({repr(config.get(key)) for config in configs}) > 1]
    parts = tuple(
        key.removesuffix("kind") for key in differing if key.endswith(".kind") and key != "model.kind"
    )
    shown = [key for key in differing if key.endswith(".kind") or not key.startswith(parts)]
    if len(shown) > WIDEST:
        shown = [key for key in shown if key.endswith(".kind") or not key.startswith("model.")]
    return shown


def aligned(rows):
    """A table that reads as well in a terminal as in Markdown."""
    head, *body = [[cell.replace("|", "\\|") for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(head, *body, strict=True)]
    lines = [head, ["-" * width for width in widths], *body]
    return "\n".join(
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) + " |"
        for line in lines
    )


def main(words):
    parser = argparse.ArgumentParser(
        prog="python -m training.compare", description="One table and one plot of several runs."
    )
    parser.add_argument("folders", nargs="+", type=Path, metavar="runs/name")
    compare(parser.parse_args(words).folders)


if __name__ == "__main__":
    sys.exit(run_command(main, sys.argv[1:]))
