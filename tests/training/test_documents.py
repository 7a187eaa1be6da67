"""Several documents in one sequence, each as if alone: data.document_mask=true."""

from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from data.objectives import NextToken
from model.loss import loss
from tests.model.test_layers import PATTERNS, settings
from tests.parts import alive, part, refused, tiny, tokens
from tests.training.runs import last

END = 0
TOKENIZER = SimpleNamespace(specials={"end": END})
# where end tokens are: at the first and the last position, side by side, and as the last target
ENDS = [[0, 5, 15], [2, 3, 9, 16], [], range(17)]
VARIANTS = [
    {"attention": part("attention", "gqa", sliding_window=3)},
    {"attention": part("attention", "mha", logit_softcap=2.0)},
    {"ffn": part("ffn", "moe"), "bigrams": 16},
    *(settings(pattern) for pattern in PATTERNS),
]


def text():
    """Rows of 16 tokens and one more."""
    made = tokens(len(ENDS), 17)  # none is END
    for row, ends in zip(made, ENDS, strict=True):
        row[list(ends)] = END
    return made


def batch():
    return NextToken(16, document_mask=True).batch(text().numpy(), None, TOKENIZER)


def loss_and_gradients(net, batches):
    total = sum(loss(net.hidden(**inputs), net.head, targets)[0] for inputs, targets in batches)
    return [total, *torch.autograd.grad(total, list(net.parameters()), materialize_grads=True)]


def alone():
    """Each document of each row as a batch; the last token of one is the last target of another."""
    for row in text():
        begins = [i for i in range(1, 16) if row[i] == END]
        for start, stop in pairwise([0, *begins, 16]):
            yield {"tokens": row[None, start:stop]}, row[None, start + 1 : stop + 1]


@pytest.mark.parametrize("changes", VARIANTS)
@pytest.mark.parametrize("fused", [False, True])
def test_loss_and_gradients(changes, fused, monkeypatch):
    """(Every part is in test_grid_in_use.py.)"""
    if fused:
        monkeypatch.setattr("model.attend.prefers_matmuls_on_cpu", lambda *_: False)
    net = alive(tiny(**{"position": part("position", "rope")} | changes))
    made = batch()
    expected = loss_and_gradients(net, alone())
    found = loss_and_gradients(net, [(made.inputs, made.targets)])
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)


def test_not_for_decoding():
    net = alive(tiny())
    with refused("documents are for training: give neither caches nor"):
        net.hidden(**batch().inputs, caches=net.new_caches(16))


def test_a_run(run):
    """Its tokens are those of other runs."""
    plain = run("data.split_on=line")
    masked = run("data.split_on=line", "data.document_mask=true")
    assert last(plain, "val_loss") != last(masked, "val_loss")
    assert len(list(Path("data/cache").glob("*/index.json"))) == 1
