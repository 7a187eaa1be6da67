"""Every preset in lower precision, and compiled: the same model within rounding."""

from functools import partial
from types import SimpleNamespace

import pytest
import torch

from configs.compose import compose
from configs.schema import IGNORE_INDEX, LossConfig
from model.generate.decode import generate
from model.loss import loss
from model.transformer import build_model
from tests.parts import TYPICAL, names, thin, tokens
from training import step
from training.step import LossModule, compile_module

SOURCE = tokens(2, 9, seed=1)
TEXT = tokens(2, 7)

every_preset = pytest.mark.parametrize("preset", names("model"))


def built(preset):
    """A model after two steps of training, so that none of its weights are zero, and its inputs."""
    net = build_model(compose([f"model={preset}", "size=tiny", "model.dropout=0"]).model, 23)
    inputs = [SOURCE, TEXT] if net.kind == "encoder_decoder" else [TEXT]
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(2):
        total, count = loss(net.hidden(*inputs), net.head, TEXT)
        (total / count).backward()
        optimizer.step()
    return net.eval(), inputs


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("preset", thin(names("model"), TYPICAL))
def test_autocast(preset, dtype):
    """Weights and gradients are float32, and close to those without autocast."""
    net, inputs = built(preset)

    def mean_and_gradient(enabled):
        net.zero_grad()
        with torch.autocast("cpu", dtype, enabled=enabled):
            total, count = loss(net.hidden(*inputs), net.head, TEXT)
        (total / count).backward()
        return total / count, torch.cat([p.grad.flatten() for p in net.parameters()])

    exact, exact_grad = mean_and_gradient(False)
    rough, rough_grad = mean_and_gradient(True)
    assert rough.dtype == rough_grad.dtype == torch.float32
    assert rough.item() == pytest.approx(exact.item(), rel=0.01)
    assert torch.cosine_similarity(exact_grad, rough_grad, dim=0) > 0.99


@every_preset
def test_bfloat16_model(preset):
    net, inputs = built(preset)
    exact = net(*inputs)
    rough = net.bfloat16()(*inputs)
    assert rough.dtype == torch.bfloat16
    assert torch.cosine_similarity(exact.flatten(), rough.flatten().float(), dim=0) > 0.99
    if net.kind != "encoder":
        sources = SOURCE.tolist() if net.kind == "encoder_decoder" else None
        steps = list(generate(net, TEXT.tolist(), sources=sources, max_new_tokens=3))
        assert [len(step) for step in steps] == [2, 2, 2]


def keep_graphs():
    """A list, and a backend of torch.compile that adds the graphs to it."""
    graphs = []
    return graphs, lambda graph, inputs: graphs.append(graph) or graph


@pytest.mark.filterwarnings("ignore:.*should not be instantiated")  # torch.compile does it itself
@pytest.mark.parametrize("preset", thin(["gpt2", "llama", "deepseek", "bert", "t5"], ["t5"]))
def test_a_step_compiles_to_one_graph(preset):
    """Forward pass and loss, without a break, and once more where the number of targets or the
    length of the sources varies."""
    net, _ = built(preset)
    module = LossModule(net, LossConfig(label_smoothing=0.0, z_loss=0.0))
    graphs, backend = keep_graphs()
    compiled = torch.compile(module, fullgraph=True, backend=backend)
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


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # read by torch.compile itself
def test_the_blocks_of_a_deep_model_share_a_graph(monkeypatch):
    """They are compiled for training alone."""
    net, _ = built("gpt2")
    module = LossModule(net, LossConfig(label_smoothing=0.0, z_loss=0.0)).train()
    parameters = list(net.parameters())
    expected = torch.autograd.grad(module({"tokens": TEXT}, TEXT, TEXT.numel())["loss"], parameters)
    graphs, backend = keep_graphs()
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=backend))
    monkeypatch.setattr(step, "MANY_BLOCKS", 2)
    config = SimpleNamespace(compile=True)
    compiled = compile_module(module, config, SimpleNamespace(device=torch.device("cpu")))
    loss = compiled({"tokens": TEXT}, TEXT, TEXT.numel())["loss"]
    torch.testing.assert_close(torch.autograd.grad(loss, parameters), expected)
    assert len(graphs) == 1
    compiled.eval()({"tokens": TEXT}, TEXT, TEXT.numel())
    assert len(graphs) == 1
