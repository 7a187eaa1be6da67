"""Does the torch of this environment compile a training step, and rightly? To be run with other versions.

python -m tests.benchmarks.versions
"""

import json
import platform
import sys

import torch
from torch._dynamo.utils import counters

from tests.benchmarks.gpu.correctness import relative
from tests.benchmarks.gpu.setup import Bench, randomize

SIZES = {"n_layers": 1, "context_length": 16}  # compiling takes long on a CPU


def losses_and_gradients(bench, preset, compiled):
    """(loss and gradient of each of six batches, the graphs that were compiled after the third)"""
    config = bench.config(preset, "tiny", **SIZES)
    step = bench.step(config, 4, dtype="fp32", compiled=compiled)
    randomize(step.model)
    counters.clear()
    results, graphs = [], []
    for seed in range(6):
        batch = bench.batch(config, 4, seed)
        step.model.zero_grad()
        loss = step.backward(batch, batch.count) / batch.count
        gradient = torch.cat([p.grad.flatten() for p in step.model.parameters()])
        results.append(torch.cat([loss[None], gradient / gradient.norm()]))
        graphs.append(counters["stats"]["unique_graphs"])
    return torch.stack(results), graphs


def main(backend="inductor"):
    row = {"torch": torch.__version__, "python": platform.python_version(), "ok": True}
    bench = Bench(torch.device("cpu"), vocab_size=64, backend=backend)
    for preset in ("gpt2", "modern"):
        eager, _ = losses_and_gradients(bench, preset, compiled=False)
        compiled, graphs = losses_and_gradients(bench, preset, compiled=True)
        error, recompiled = relative(compiled, eager), graphs[-1] - graphs[2]
        row[preset] = {"error": error, "graphs": graphs[2], "recompiled": recompiled}
        row["ok"] &= error < 1e-4 and graphs[2] > 0 == recompiled
    print(json.dumps(row))
    return row["ok"]


if __name__ == "__main__":
    sys.exit(not main())
