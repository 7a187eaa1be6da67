"""Runs: where their folders are, the names of their checkpoints,
runs/name/checkpoints/step-########, and the rows of their logs."""

import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import suppress
from difflib import get_close_matches
from pathlib import Path

from configs.errors import CheckpointError

RUNS = Path("runs")
STEP = "step-????????"  # a glob pattern
FROZEN = "frozen.safetensors"  # weights that no step changes, so no checkpoint holds them
FORMAT = 3


def step_name(step: int) -> str:
    return f"step-{step:08}"


def step_of(checkpoint: Path) -> int:
    return int(checkpoint.name.removeprefix("step-"))


def list_checkpoints(folder: Path) -> list[Path]:
    """The checkpoints of a run, newest first."""
    return sorted((folder / "checkpoints").glob(STEP), reverse=True)


def list_runs() -> list[Path]:
    """The runs that have a checkpoint, including those of sweeps; the first has the newest."""
    found = [*RUNS.glob(f"*/checkpoints/{STEP}"), *RUNS.glob(f"*/*/checkpoints/{STEP}")]
    found.sort(key=os.path.getmtime, reverse=True)
    return list(dict.fromkeys(path.parents[1] for path in found))


def newest_run() -> Path:
    runs = list_runs()
    if not runs:
        raise CheckpointError(f"{RUNS}/ has no run with a checkpoint; train one: python train.py")
    return runs[0]


def similar_run(place: Path) -> str:
    """A hint that names the run with the most similar name, or nothing."""
    runs = {run.name: run for run in reversed(list_runs())}
    near = get_close_matches(place.name, runs, 1)
    return f" (did you mean {runs[near[0]]}?)" if near else ""


def read_best(folder: Path) -> str | None:
    """The name of the best checkpoint."""
    path = folder / "checkpoints" / "best"
    return path.read_text(encoding="utf-8").strip() if path.exists() else None


def sha256(path: Path) -> str | None:
    """The hash of a file, or None if it cannot be read."""
    with suppress(OSError), path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
    return None


def read_rows(path: Path) -> Iterator[dict]:
    """Yield all rows, except one that was cut off when the run was killed."""
    if not path.exists():
        return
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        with suppress(ValueError):
            yield json.loads(line)
