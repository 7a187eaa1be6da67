"""Decoding by a CUDA graph, on a graph made of the CPU's operations: the same ids and
log-probabilities as with a cache that grows."""

from contextlib import contextmanager
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import torch
import transformers.generation.utils  # noqa: F401  before anything of torch.cuda is replaced
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from model.generate.decode import decode
from model.generate.logits_processor import LogitsProcessor
from model.generate.replay import can_replay
from tests.model.generate.test_decode import PROMPTS, lively

aten = torch.ops.aten


class Graph(TorchDispatchMode):
    """Records operations with their tensors, and repeats them on the same memory."""

    def __init__(self):
        super().__init__()
        self.calls = []
        self.undo = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        assert function is not aten._local_scalar_dense.default, "a graph cannot wait for a number"
        if function._schema.is_mutable:  # recording executes nothing on a GPU
            self.undo.append((args[0], args[0].clone()))
        output = function(*args, **kwargs)
        self.calls.append((function, args, kwargs, output))
        return output

    def __exit__(self, *error):
        super().__exit__(*error)
        for tensor, before in reversed(self.undo):
            tensor.copy_(before)

    def replay(self):
        for function, args, kwargs, output in self.calls:
            new = function(*args, **kwargs)
            for tensor, value in zip(tree_leaves(output), tree_leaves(new), strict=True):
                if isinstance(tensor, torch.Tensor) and tensor.data_ptr() != value.data_ptr():
                    tensor.copy_(value)


@contextmanager
def recording(graph, **options):
    with graph:
        yield


@pytest.fixture
def graphs(monkeypatch):
    """What makes the graphs of a test."""
    made = Mock(side_effect=Graph)
    monkeypatch.setattr("torch.cuda.CUDAGraph", made)
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.current_stream", Mock())
    monkeypatch.setattr("torch.cuda.graph", recording)
    return made


@pytest.fixture
def replayed(graphs, monkeypatch):
    """replayed(model, prompts, ...): a graph gives what a cache that grows gives"""

    def replayed(model, prompts, **options):
        grown = list(decode(model, prompts, **options))
        monkeypatch.setattr("model.generate.decode.can_replay", lambda model: True)
        for step, expected in zip(decode(model, prompts, **options), grown, strict=True):
            assert step.ids == expected.ids
            assert step.logprobs == pytest.approx(expected.logprobs, abs=1e-10)
        assert graphs.call_count == 1

    return replayed


def test_one_greedy_row(replayed):
    """Past the context. (Every part is in test_grid_in_use.py, with rows of unequal length.)"""
    replayed(lively(), PROMPTS[:1], max_new_tokens=24)


def test_two_steps_are_under_way_while_one_is_read(graphs, monkeypatch):
    """The model runs in Python for the prompt, to warm up, and to be recorded; then no more."""
    model = lively()
    runs = Mock(return_value=None)
    model.head.register_forward_pre_hook(runs)
    monkeypatch.setattr("model.generate.decode.can_replay", lambda model: True)
    steps = decode(model, PROMPTS[:1], max_new_tokens=9)
    next(steps)
    assert runs.call_count == 3
    assert len(list(steps)) == 8
    assert runs.call_count == 3


def test_a_processor_reads_each_token_before_the_next(graphs, monkeypatch):
    model = lively()
    options = {"max_new_tokens": 12}
    rules = {"no_repeat_ngram_size": 1}
    expected = []
    for is_replayed in (False, True):
        monkeypatch.setattr("model.generate.decode.can_replay", Mock(return_value=is_replayed))
        processor = LogitsProcessor(rules, PROMPTS, 12, [])
        expected.append([*decode(model, PROMPTS, processor=processor, **options)])
    assert expected[0] == expected[1] != [*decode(model, PROMPTS, **options)]
    assert graphs.call_count == 1, "of the last call alone"


OTHERS = [
    ({}, True),
    ({"requires_grad": True}, True),  # samples while training
    ({"full_tensor": None}, False),
    ({"is_cuda": False}, False),
    ({"get_device": lambda: 1}, False),
]


@pytest.mark.parametrize("other, expected", OTHERS)
def test_only_whole_weights_of_the_current_gpu_are_replayed(other, expected, monkeypatch):
    monkeypatch.setattr("torch.cuda.current_device", lambda: 0)
    usual = {"is_cuda": True, "requires_grad": False, "ndim": 2, "get_device": lambda: 0}
    weights = [SimpleNamespace(**usual), SimpleNamespace(**usual | other)]
    assert can_replay(SimpleNamespace(parameters=lambda: weights)) == expected
