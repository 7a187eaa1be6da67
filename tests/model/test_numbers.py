"""Every preset in lower precision, and compiled: the same model within rounding."""

import pytest
import torch

from configs.compose import compose
from model import build_model
from model.generate.decode import generate
from model.loss import loss
from tests.parts import names, tokens

SOURCE, TEXT = tokens(2, 9, seed=1), tokens(2, 7)


def built(preset):
    """A model after two steps of training, so that none of its weights are zero."""
    config = compose([f"model={preset}", "size=tiny", "model.dropout=0"]).model
    net = build_model(config, 23)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(2):
        total, count = loss(hidden(net, config.kind), net.head, TEXT)
        (total / count).backward()
        optimizer.step()
    return net.eval(), config.kind


def hidden(net, kind):
    return net.hidden(SOURCE, TEXT) if kind == "encoder_decoder" else net.hidden(TEXT)


def logits(net, kind):
    return net(SOURCE, TEXT) if kind == "encoder_decoder" else net(TEXT)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("preset", names("model"))
def test_autocast(preset, dtype):
    """Weights and gradients are float32, and close to those without autocast."""
    net, kind = built(preset)

    def gradients(enabled):
        net.zero_grad()
        with torch.autocast("cpu", dtype, enabled=enabled):
            total, count = loss(hidden(net, kind), net.head, TEXT)
        (total / count).backward()
        return total / count, torch.cat([p.grad.flatten() for p in net.parameters()])

    (exact, exact_grad), (rough, rough_grad) = gradients(False), gradients(True)
    assert rough.dtype == rough_grad.dtype == torch.float32
    assert rough.item() == pytest.approx(exact.item(), rel=0.01)
    assert torch.cosine_similarity(exact_grad, rough_grad, dim=0) > 0.99


@pytest.mark.parametrize("preset", names("model"))
def test_bfloat16_model(preset):
    net, kind = built(preset)
    exact = logits(net, kind)
    net = net.bfloat16()
    rough = logits(net, kind)
    assert rough.dtype == torch.bfloat16
    assert torch.cosine_similarity(exact.flatten(), rough.flatten().float(), dim=0) > 0.99
    if kind != "encoder":
        sources = SOURCE.tolist() if kind == "encoder_decoder" else None
        steps = list(generate(net, TEXT.tolist(), sources=sources, max_new_tokens=3))
        assert [len(step) for step in steps] == [2, 2, 2]


@pytest.mark.parametrize("preset", ["modern", "deepseek", "bert", "t5"])
def test_compiles_without_graph_breaks(preset):
    net, kind = built(preset)
    compiled = torch.compile(net, fullgraph=True, backend="eager")
    torch.testing.assert_close(logits(compiled, kind), logits(net, kind), rtol=0, atol=1e-4)
