"""Every preset in lower precision, and compiled: the same model within rounding."""

from functools import partial

import pytest
import torch

from configs.compose import compose
from configs.schema import IGNORE_INDEX, LossConfig
from model.loss import loss
from model.transformer import build_model
from tests.parts import TYPICAL, names, thin, tokens
from training.step import LossModule

SOURCE = tokens(2, 9, seed=1)
TEXT = tokens(2, 7)
PLAIN = LossConfig(label_smoothing=0.0, z_loss=0.0)


def built(preset):
    """A model after two steps of training, so that none of its weights are zero, and its inputs."""
    net = build_model(compose([f"model={preset}", "size=tiny", "model.dropout=0"]).model, 23)
    inputs = [SOURCE, TEXT] if net.kind == "encoder_decoder" else [TEXT]
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(2):
        mean_loss(net, inputs).backward()
        optimizer.step()
    return net.eval(), inputs


def mean_loss(net, inputs):
    total, count = loss(net.hidden(*inputs), net.head, TEXT)
    return total / count


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("preset", thin(names("model"), TYPICAL))
def test_autocast(preset, dtype):
    """Weights and gradients are float32, and close to those without autocast."""
    net, inputs = built(preset)

    means = []
    gradients = []
    for enabled in (False, True):
        net.zero_grad()
        with torch.autocast("cpu", dtype, enabled=enabled):
            means.append(mean_loss(net, inputs))
        means[-1].backward()
        gradients.append(torch.cat([p.grad.flatten() for p in net.parameters()]))
    torch.testing.assert_close(*means, rtol=0.01, atol=0)  # and have one dtype, float32
    assert torch.cosine_similarity(*gradients, dim=0) > 0.99


@pytest.mark.parametrize("preset", names("model"))
def test_bfloat16_model(preset):
    net, inputs = built(preset)
    exact = net(*inputs)
    rough = net.bfloat16()(*inputs)
    assert rough.dtype == torch.bfloat16
    assert torch.cosine_similarity(exact.flatten(), rough.flatten().float(), dim=0) > 0.99


@pytest.fixture
def graphs(monkeypatch):
    """The graphs that torch.compile makes."""
    made = []

    def backend(graph, inputs):
        made.append(graph)
        return graph

    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=backend))
    return made


@pytest.mark.filterwarnings("ignore:.*should not be instantiated")  # torch.compile does it itself
@pytest.mark.parametrize("preset", thin(["gpt2", "llama", "deepseek", "bert", "t5"], ["t5"]))
def test_a_step_compiles_to_one_graph(preset, graphs):
    """Forward pass and loss, without a break, and once more where the number of targets or the
    length of the sources varies."""
    net, _ = built(preset)
    module = LossModule(net, PLAIN)
    compiled = torch.compile(module, fullgraph=True)
    for i in range(5):
        inputs = {"tokens": TEXT}
        targets = TEXT
        if preset == "bert":
            targets = torch.where(torch.arange(7) < 6 - i, TEXT, IGNORE_INDEX)
        if preset == "llama":
            inputs["documents"] = (torch.arange(7) > i).int().repeat(2, 1)
        if preset == "t5":
            inputs["source"] = tokens(2, 9 + i)
        count = int((targets != IGNORE_INDEX).sum())
        gradients = [
            torch.autograd.grad(step(inputs, targets, count)["loss"], list(net.parameters()))
            for step in (compiled, module)
        ]
        torch.testing.assert_close(*gradients, rtol=0, atol=1e-4)
    assert len(graphs) <= (2 if preset in ("bert", "t5") else 1)
