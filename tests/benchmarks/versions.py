"""Whether the torch of this environment compiles a training step, and rightly.

python -m tests.benchmarks.versions
"""

import json
import platform
import sys

import torch
from torch._dynamo.utils import counters

from configs.compose import compose
from tests.benchmarks.gpu.checks import randomize, results
from tests.benchmarks.step import Ours, random_batch

SETTINGS = "size=tiny model.n_layers=1 model.context_length=16 device=cpu precision=fp32"


def gradients(preset, compiled):
    """(the gradient of each of six batches, the graphs that were compiled by then)"""
    config = compose([f"model={preset}", *SETTINGS.split(), f"compile={compiled}"])
    ours = Ours(config, 64)
    randomize(ours.model)
    counters.clear()
    found = []
    graphs = []
    for seed in range(6):
        batch = random_batch(config.model, 64, 4, seed)
        found.append(results(ours.train_module, batch, ours.world.precision)["gradient"])
        graphs.append(counters["stats"]["unique_graphs"])
    return torch.stack(found), graphs


def main():
    row = {"torch": torch.__version__, "python": platform.python_version(), "ok": True}
    for preset in ("gpt2", "modern"):
        eager, _ = gradients(preset, "false")
        compiled, graphs = gradients(preset, "true")
        error = ((compiled - eager).norm() / eager.norm()).item()
        recompiled = graphs[-1] - graphs[2]
        row[preset] = {"error": error, "graphs": graphs[2], "recompiled": recompiled}
        row["ok"] &= error < 1e-4 and graphs[2] > 0 and not recompiled
    print(json.dumps(row))
    return row["ok"]


if __name__ == "__main__":
    sys.exit(not main())
