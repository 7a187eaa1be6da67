"""Several documents in one sequence, each as if alone: data.document_mask=true."""

from itertools import pairwise
from types import SimpleNamespace

import pytest
import torch

import model.attend
from configs.compose import compose
from data.corpus import build_data, load_data
from data.objectives import NextToken
from model.loss import loss
from tests.model.test_layers import PATTERNS, settings
from tests.parts import alive, kind_options, kinds, part, tiny, tokens
from tests.training.runs import with_usual

END = 0
TOKENIZER = SimpleNamespace(specials={"end": END})
# where end tokens are: at the first and the last position, side by side, and as the last target
ENDS = [[0, 5, 15], [2, 3, 9, 16], [], range(17)]
VARIANTS = [
    {"attention": part("attention", "gqa", sliding_window=3)},
    {"attention": part("attention", "mha", logit_softcap=2.0)},
    {"prefix_lm": True},
    {"ffn": part("ffn", "moe")},
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


def check(monkeypatch, **changes):
    """With the plain formula and with fused kernels."""
    net = alive(tiny(**changes))
    made = batch()
    expected = loss_and_gradients(net, alone())
    for plain in (True, False):
        monkeypatch.setattr(model.attend, "prefer_math_kernel", lambda *_, plain=plain: plain)
        found = loss_and_gradients(net, [(made.inputs, made.targets)])
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("position", kinds("position"))
@pytest.mark.parametrize("attention", kinds("attention"))
def test_every_attention_and_position(attention, position, monkeypatch):
    options = kind_options("attention", attention)
    check(monkeypatch, attention=options, position=kind_options("position", position))


@pytest.mark.parametrize("changes", VARIANTS, ids=str)
def test_windows_and_layers(changes, monkeypatch):
    check(monkeypatch, **{"position": part("position", "rope")} | changes)


def test_an_end_token_begins_the_next_document():
    made = batch()
    first, second, *_ = made.inputs["documents"].tolist()
    assert first == [1] * 5 + [2] * 10 + [3]
    assert second == [0] * 2 + [1] + [2] * 6 + [3] * 7
    assert made.count == 4 * 16 and torch.equal(made.targets, text()[:, 1:])


def test_not_for_decoding():
    net = alive(tiny())
    with pytest.raises(ValueError, match="documents are for training: give neither caches nor"):
        net.hidden(**batch().inputs, caches=net.new_caches(16))


def test_a_run(run, start):
    """Its tokens are those of other runs; what it is may not change."""
    run("data.document_mask=true", "name=own")
    errors = start.plainly("name=own", "resume=true", "data.document_mask=false", code=2).err
    made = [
        load_data(compose(with_usual([f"data.document_mask={value}"]))) for value in (True, False)
    ]
    assert made[0].content_hash == made[1].content_hash
    assert ["documents" in each.train.batch(0).inputs for each in made] == [True, False]
    assert "data.document_mask was true in this run and is now false" in errors


def test_only_for_next_token():
    for other in ("model=bert", "data=synthetic"):
        with pytest.raises(
            ValueError, match="document_mask=true is for objective=next_token; this"
        ):
            build_data(compose(["data.document_mask=true", other]))
