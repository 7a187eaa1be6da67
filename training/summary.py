"""Summary: the lines after a run."""

import math
import shlex
from pathlib import Path

from model.runs import read_best, step_name
from training.run import Run


def summarize(folder: Path, run: Run) -> str:
    """The results of a run, and the command that samples from it."""
    config = run.config
    state = run.state
    lines = []
    if state.evals_since_best >= (config.train.patience or math.inf):
        lines.append(f"stopped early: no improvement in {state.evals_since_best} evaluations")

    parts = f" --parts {shlex.quote(config.parts)}" if config.parts else ""
    mode = "--chat" if run.data.objective.input_kind == "chat" else "--interactive"
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
