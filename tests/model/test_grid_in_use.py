"""Every part in use: a training step, loading, and generation past the context, in batches, as a CUDA
graph, and in beams.

The kinds come from the registries, as in test_grid.py. Those of a file of your own: -k mine
"""

import pytest
import torch

from configs.schema import IGNORE_INDEX, LossConfig
from model.generate.beams import beam_search
from model.generate.decode import generate
from model.inference import prepare
from model.transformer import ARCHITECTURES as CLASSES
from model.transformer import build_model
from model.weights import assign_weights, model_tensors
from tests.model.generate.test_decode import HOT, PROMPTS, SOURCES, collect, uncached
from tests.model.generate.test_replay import graphs, replayed  # noqa: F401
from tests.model.test_grid import LENGTH, SOURCE, assert_close, config_of
from tests.parts import PARTS, VOCABULARY, alive, architectures, kinds, part, tokens
from training.compile import recompute_blocks
from training.step import LossModule

PLAIN = LossConfig(label_smoothing=0.0, z_loss=0.0)


def every_part(*but):
    """Of ours, attentions and positions are tested in all architectures, other parts in the first. Those of a
    file of your own are tested in all of them, and all parts in an architecture of your own."""
    cases = []
    for group in PARTS:
        for kind in kinds(group):
            for place, architecture in enumerate(architectures(*but)):
                own = [param.id for param in (kind, architecture) if not isinstance(param, str)]
                if own or group in ("attention", "position") or place == 0:
                    values = [
                        param if isinstance(param, str) else param.values[0]
                        for param in (kind, architecture)
                    ]
                    cases.append(pytest.param(group, *values, id="-".join([group, *values, *own])))
    return pytest.mark.parametrize("group, kind, architecture", cases)


def net_of(architecture, group, kind):
    """The most likely token changes at every step, since no bias dominates."""
    lively = {"norm": "rmsnorm", "position": "rope"} | {group: kind}
    config = config_of(architecture, **lively)
    if group != "norm":
        config.norm = part("norm", "rmsnorm_no_weight")
    return alive(config), config


def inputs_of(net):
    made = {"tokens": tokens(2, LENGTH)}
    if net.kind == "encoder_decoder":
        made["source"] = tokens(2, SOURCE, seed=5)
    return made


def gradients(net, **inputs):
    """Of all losses of a training step."""
    inputs = inputs_of(net) | inputs
    targets = inputs["tokens"]
    losses = LossModule(net.train(), PLAIN)(inputs, targets, targets.numel())
    net.zero_grad()
    sum(losses.values()).backward()
    return {name: parameter.grad for name, parameter in net.named_parameters()}


@every_part()
def test_a_training_step(group, kind, architecture):
    """Every parameter has a gradient, which is the same where blocks are computed again."""
    net, _ = net_of(architecture, group, kind)
    expected = gradients(net)
    assert [name for name, grad in expected.items() if grad is None or not grad.any()] == []
    recompute_blocks(net)
    assert_close(gradients(net), expected)
    if hasattr(net, "loss"):  # it is summed, so that micro-batches add up, without IGNORE_INDEX
        hidden, targets = net.hidden(tokens(4, LENGTH)), tokens(4, LENGTH, seed=8)
        pieces = zip(hidden.split(2), targets.split(2), strict=True)
        first, second = (net.loss(*piece) for piece in pieces)
        assert net.loss(hidden, targets).item() == pytest.approx((first + second).item())
        targets[2:] = IGNORE_INDEX
        assert net.loss(hidden, targets).item() == pytest.approx(first.item())


@torch.no_grad()
@every_part()
def test_loading(group, kind, architecture):
    """As sample.py builds, fills and prepares a model."""
    net, config = net_of(architecture, group, kind)
    inputs = inputs_of(net)
    expected = net(**inputs)
    saved = {name: tensor.clone() for name, tensor in model_tensors(net).items()}
    with torch.device("meta"):
        loaded = build_model(config, VOCABULARY)
    assign_weights(loaded, saved).eval()
    assert_close(loaded(**inputs), expected)
    prepare(loaded.float())
    torch.testing.assert_close(loaded(**inputs).double(), expected, rtol=1e-4, atol=1e-4)


@every_part("encoder")
def test_generation(group, kind, architecture, replayed):
    """Rows of unequal length, past the context of 16; with fixed shapes, as a graph."""
    net, _ = net_of(architecture, group, kind)
    if hasattr(net, "generate"):
        pytest.skip("it generates in a way of its own")
    options = {"max_new_tokens": 17, "sampling": HOT}
    if net.kind == "encoder_decoder":
        options["sources"] = SOURCES
    assert collect(generate(net, PROMPTS, **options)) == uncached(net, PROMPTS, **options)
    if all(parameter.ndim < 3 for parameter in net.parameters()):  # experts wait for the host
        replayed(net, PROMPTS, **options)


@torch.no_grad()
@every_part("encoder", "decoder")
def test_beams(group, kind, architecture):
    """The log-probabilities are those of forward passes, past the context, too."""
    net, _ = net_of(architecture, group, kind)
    options = {"beams": 4, "length_penalty": 1.0, "max_new_tokens": 20}
    row = [1]
    for step in beam_search(net, [[1]], SOURCES[:1], **options):
        row = row[-8:] if len(row) > 16 else row
        logits = net(torch.tensor(SOURCES[:1]), torch.tensor([row]))[0, -1]
        [i], [logprob] = step
        assert logits.log_softmax(-1)[i].item() == pytest.approx(logprob, abs=1e-10)
        row = [*row, i]


@torch.no_grad()
@every_part("encoder", "encoder_decoder")
def test_documents(group, kind, architecture):
    """Each is as if alone."""
    net, _ = net_of(architecture, group, kind)
    text = tokens(2, LENGTH)
    documents = torch.tensor([[0, 0, 0, 1, 1, 2, 2]] * 2)
    alone = [net(piece) for piece in text.split([3, 2, 2], 1)]
    together = net.head(net.hidden(text, documents=documents))
    assert_close(together, torch.cat(alone, 1))


@every_part()
def test_initialization(group, kind, architecture):
    """What a constructor sets to the same values each time stays so in a new model; a part whose
    linear maps or embeddings begin so needs a method reset(), which sets all."""
    _, config = net_of(architecture, group, kind)
    torch.manual_seed(0)
    made = [CLASSES[architecture](config, VOCABULARY).parameters() for _ in range(2)]
    net = build_model(config, VOCABULARY)
    reset = [p for part in net.modules() if hasattr(part, "reset") for p in part.parameters()]
    for (name, parameter), *others in zip(net.named_parameters(), *made, strict=True):
        if torch.equal(*others) and not any(parameter is own for own in reset):
            assert torch.equal(parameter, others[0]), name
