"""What torch.compile makes of a step: which graphs, how large, and what happens where it fails."""

from functools import partial
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from configs.schema import IGNORE_INDEX, LossConfig
from data.batch import Batch
from model.transformer import build_model
from tests.parts import part, thin, tiny, tokens
from training.compile import compile_module, recompute_blocks
from training.step import LossModule

VOCABULARY = 2**20 // 512  # no smaller, so that a chunk is of 512 positions
ROWS, LENGTH = 120, 20
CPU = torch.device("cpu")

# torch.compile itself reads .grad, and makes instances of autograd.Function
pytestmark = pytest.mark.filterwarnings(
    "ignore:The .grad attribute", "ignore:.*should not be instantiated"
)


@pytest.fixture
def compiled(monkeypatch):
    """compiled(module, ...): compiled by a backend that keeps the graphs, in compiled.graphs"""
    torch.compiler.reset()
    graphs = []

    def keep(graph, inputs):
        graphs.append(graph)
        return graph

    def compiled(module, backend=keep, compile=True, parallel="none", recompute="none", device=CPU):
        monkeypatch.setattr("torch.compile", partial(COMPILE, backend=backend))
        train = SimpleNamespace(recompute=recompute)
        world = SimpleNamespace(device=device, parallel=parallel)
        compile_module(module, SimpleNamespace(compile=compile, train=train), world)
        return module

    compiled.graphs = graphs
    return compiled


COMPILE = torch.compile


def make_module(**changes):
    return LossModule(
        build_model(tiny(context_length=LENGTH, **changes), VOCABULARY, seed=3),
        LossConfig(0.0, 0.0),
    )


def make_batch(share=1.0):
    """Of whose positions a share is targets."""
    text = tokens(ROWS, LENGTH + 1) % VOCABULARY
    targets = text[:, 1:].clone()
    n_targets = round(share * targets.numel())
    targets.view(-1)[n_targets:] = IGNORE_INDEX
    return Batch({"tokens": text[:, :-1]}, targets, n_targets)


def gradients(module, batch, forward=None):
    module.zero_grad()
    losses = (forward or module)(*batch)
    sum(losses.values()).backward()
    return {name: p.grad.clone() for name, p in module.named_parameters() if p.grad is not None}


def is_of_all_tokens(node):
    value = node.meta.get("example_value")
    return isinstance(value, torch.Tensor) and value.shape[-1:] == (VOCABULARY,)


def test_any_number_of_chunks_shares_two_graphs(compiled):
    """Of batches of one shape: the network is a graph, and so is a chunk, once more for a chunk that
    is not full. No graph has the logits of two chunks, which it might keep together."""
    module = make_module()
    batches = [make_batch(share) for share in (0.1, 0.3, 0.5, 0.7, 0.9, 1.0)]
    expected = [gradients(module, batch) for batch in batches]
    assert batches[-1].count > 4 * 512
    compiled(module)
    found = [gradients(module, batch) for batch in batches]
    with torch.no_grad():  # evaluations run eagerly
        module.eval()(*batches[0])
        module.train()(*batches[0])
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    assert len(compiled.graphs) == 3
    for graph in compiled.graphs:
        linear = [node for node in graph.graph.nodes if node.target is torch.nn.functional.linear]
        assert sum(map(is_of_all_tokens, linear)) <= 1


CASES = [(case, ffn) for ffn in ("gelu", "moe") for case in ("plain", "recompute", "deep", "ddp")]


@pytest.mark.parametrize("case, ffn", thin(CASES, [("ddp", "gelu"), ("recompute", "moe")]))
def test_each_way_of_training_has_the_gradients_of_eager_training(case, ffn, compiled, monkeypatch):
    """Blocks share a graph where there are many, or a checkpoint around each; the losses of the
    network are in none."""
    module = make_module(n_layers=4, ffn=part("ffn", ffn))
    batch = make_batch()
    expected = gradients(module, batch)
    if case == "deep":
        monkeypatch.setattr("training.compile.MANY_BLOCKS", 4)
    compiled(module, recompute="block" if case == "recompute" else "none")
    if case == "recompute":
        recompute_blocks(module)
    forward = module
    if case == "ddp":
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        forward = DistributedDataParallel(module, gradient_as_bucket_view=True)
    try:
        for _ in range(2):
            found = gradients(module, batch, forward)
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    if ffn == "gelu":
        assert len(compiled.graphs) == 3


def fails(graph, inputs):
    raise RuntimeError("no room for this graph\nand more that nobody needs")


WARNING = "warning: training continues uncompiled, and slower: torch.compile failed ("


def test_what_cannot_be_compiled_runs_eagerly_after_one_line(compiled, capsys):
    """With compile=auto, on a GPU: with its reason, once for all blocks."""
    module = make_module()
    batch = make_batch()
    expected = gradients(module, batch)
    compiled(module, fails, compile="auto", device=torch.device("cuda"))
    torch.testing.assert_close(gradients(module, batch), expected, rtol=0, atol=0)
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith(WARNING) and "no room for this graph" in line
    gradients(module, batch)
    assert not capsys.readouterr().err


def test_what_was_asked_for_and_cannot_be_compiled_is_an_error(compiled):
    module = compiled(make_module(), fails, compile=True)
    with pytest.raises(Exception, match="no room for this graph"):
        gradients(module, make_batch())
