"""The overrides of a small run, and what is read from its folder."""

import json
import sys
from pathlib import Path
from unittest.mock import patch

from hydra._internal.hydra import Hydra

import training.log
from configs.cli import run_hydra
from tests.parts import ROOT
from train import main

TEXT = "".join(f"line {i} of a text, don't {i * i}\n" for i in range(400))
USUAL = [
    "size=tiny",
    "model.context_length=32",
    "tokenizer=byte",
    "data=text",
    "data.path=book.txt",
    "train.steps=4",
    "train.batch_size=4",
    "eval.max_examples=4",
    "precision=fp32",
]
TIMES = {"seconds", "tokens_per_second", "mfu"}
# on two processes
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
TORCHRUN.append(str(ROOT / "train.py"))

# what takes half of the time of a short run: a composition that only finds hydra.mode, and matplotlib
Hydra.get_mode = lambda *_, **options: None
training.log.draw_run = lambda rows, path: None


def with_usual(overrides):
    """The overrides of a new run, after those of USUAL that they do not replace."""
    if "resume=true" in overrides:
        return overrides
    replaced = {override.partition("=")[0] for override in overrides}
    if replaced & {"data", "experiment"}:
        replaced.add("data.path")
    if replaced & {"train.tokens", "train.epochs", "train.minutes"}:
        replaced.add("train.steps")
    if "init_from" in replaced:
        replaced |= {"size", "model.context_length", "tokenizer"}
    usual = [override for override in USUAL if override.partition("=")[0] not in replaced]
    return [*usual, *overrides]


def read_lines(path):
    return [json.loads(line) for line in Path(path).read_text().splitlines()]


def rows(folder, *names):
    """The values of these names in each row of metrics.jsonl that has all of them."""
    logged = read_lines(f"{folder}/metrics.jsonl")
    return [tuple(row[name] for name in names) for row in logged if set(names) <= set(row)]


def last(folder, *names):
    """The same of the last such row."""
    return rows(folder, *names)[-1]


def newest(folder):
    """The folder of the newest checkpoint."""
    return max(Path(folder, "checkpoints").glob("step-*"))


def tensors(folder):
    """Of the newest checkpoint: {name: the bytes of the file}."""
    return {path.name: path.read_bytes() for path in newest(folder).glob("*.safetensors")}


def files(folder):
    return {path: path.read_bytes() for path in Path(folder).rglob("*") if path.is_file()}


def content(folder):
    """What a run comes to, without what the clock decides."""
    folder = Path(folder)
    state = json.loads((newest(folder) / "state.json").read_text())
    logged = read_lines(folder / "metrics.jsonl")
    samples = folder / "samples.jsonl"
    return {
        "tensors": tensors(folder),
        "state": {name: value for name, value in state.items() if name not in TIMES},
        "rows": [{k: v for k, v in row.items() if k not in TIMES} for row in logged],
        "samples": samples.read_bytes() if samples.exists() else b"",
        "best": (folder / "checkpoints/best").read_text(),
    }


def train(*arguments):
    """The exit code of train.py, in this process."""
    with patch.object(sys, "argv", ["train.py", *arguments]):
        return run_hydra(main)
