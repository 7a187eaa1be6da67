"""Every preset in lower precision, and compiled: the same model within rounding."""

import pytest
import torch

from configs.compose import compose
from model.loss import loss
from model.transformer import build_model
from tests.parts import TYPICAL, names, thin, tokens

SOURCE = tokens(2, 9, seed=1)
TEXT = tokens(2, 7)


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
def test_lower_precision(preset, dtype):
    """Weights and gradients are float32, and close to those without autocast. So are the logits of a
    model that is cast as a whole."""
    net, inputs = built(preset)
    exact = net(*inputs)
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
    rough = net.to(dtype)(*inputs)
    assert rough.dtype == dtype
    assert torch.cosine_similarity(exact.flatten(), rough.flatten().float(), dim=0) > 0.99
