"""Summary: the lines after a run. Compressors model text, too, so they are a baseline."""

import json
import lzma
import math
import shlex
from contextlib import suppress
from pathlib import Path

from data.corpus import Loaders
from data.disk import atomic_write
from model.runs import read_best, step_name
from training.run import Run

MAX_XZ_BYTES = 32 << 20  # of text; more would take minutes and gigabytes


def summarize(folder: Path, run: Run, metrics: dict[str, float]) -> str:
    """The results of a run, and the command that samples from it."""
    config = run.config
    data = run.data
    state = run.state
    lines = []
    if "val_bpb" in metrics:
        bits = {"this model": metrics["val_bpb"]} | baselines(data)
        lines += [f"{name:<40} {number:.3f} bits/byte" for name, number in bits.items()]
    if state.evals_since_best >= (config.train.patience or math.inf):
        lines.append(f"stopped early: no improvement in {state.evals_since_best} evaluations")

    parts = f" --parts {shlex.quote(config.parts)}" if config.parts else ""
    mode = "--chat" if data.objective.input_kind == "chat" else "--interactive"
    sample = f"python sample.py --run {folder}{parts} {mode}"
    best = read_best(folder)
    if best is not None and best != step_name(state.step):
        loss = f"val loss {state.best_val_loss:.3f}"
        lines.append(f"the best checkpoint is that of step {state.best_step:,} ({loss})")
        sample += " --checkpoint best"

    if state.best_val_loss < math.inf and state.best_step == 0 < state.step:
        lines.append("warning: the model was better before training; try a lower optimizer.lr")

    lines += ["", f"saved to {folder}, with curve.png"]
    if state.step or config.init_from:
        lines.append(f"to sample from it: {sample}")
    return "\n".join(lines)


def baselines(data: Loaders) -> dict[str, float]:
    """{compressor: bits per byte of the validation text}, cached: they take seconds, and depend
    only on the text."""
    file = data.validation.file
    if file.n_bytes > MAX_XZ_BYTES:
        return {}
    path = file.folder / f"baselines-{data.content_hash[:16]}.json"
    with suppress(OSError, ValueError):
        return json.loads(path.read_text())
    text = data.tokenizer.decode(file.tokens.tolist()).encode()
    bits = {"xz -9": 8 * len(lzma.compress(text, preset=9)) / len(text)}
    with suppress(OSError):
        atomic_write(path, json.dumps(bits))
    return bits
