"""Does the torch of this environment compile a training step, and rightly? To be run with other versions.

python -m tests.benchmarks.versions
"""

import json
import platform
import sys

import torch
from torch._dynamo.utils import counters

from configs.compose import compose
from tests.benchmarks.step import Ours, random_batch

SETTINGS = "size=tiny model.n_layers=1 model.context_length=16 device=cpu precision=fp32"
VOCABULARY = 64


def losses_and_gradients(preset, compiled):
    """(loss and gradient of each of six batches, the graphs that were compiled after each)"""
    config = compose([f"model={preset}", *SETTINGS.split(), f"compile={compiled}"])
    ours = Ours(config, VOCABULARY)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in ours.model.parameters():  # none stays zero, which would hide an error
            parameter += 0.03 * torch.randn(parameter.shape, generator=generator)
    counters.clear()
    results = []
    graphs = []
    for seed in range(6):
        ours.module.zero_grad()
        loss = ours.train_module(*random_batch(config.model, VOCABULARY, 4, seed))
        loss.backward()
        gradient = torch.cat([p.grad.flatten() for p in ours.model.parameters()])
        results.append(torch.cat([loss.detach()[None], gradient]))
        graphs.append(counters["stats"]["unique_graphs"])
    return torch.stack(results), graphs


def main():
    row = {"torch": torch.__version__, "python": platform.python_version(), "ok": True}
    for preset in ("gpt2", "modern"):
        eager, _ = losses_and_gradients(preset, "false")
        compiled, graphs = losses_and_gradients(preset, "true")
        error = ((compiled - eager).norm() / eager.norm()).item()
        recompiled = graphs[-1] - graphs[2]
        row[preset] = {"error": error, "graphs": graphs[2], "recompiled": recompiled}
        row["ok"] &= error < 1e-4 and graphs[2] > 0 and not recompiled
    print(json.dumps(row))
    return row["ok"]


if __name__ == "__main__":
    sys.exit(not main())
