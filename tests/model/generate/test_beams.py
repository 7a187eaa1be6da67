"""Beam search: with enough beams it is exhaustive. (With few, it is compared with transformers in
test_logits_processor.py; past the context, in test_grid_in_use.py.)"""

import pytest
import torch

from model.generate.beams import beam_search
from tests.parts import alive, part, refused, tiny

SMALL = 6  # size of a vocabulary that can be enumerated
END = 5


def search(net, source, **options):
    """The ids and log-probabilities of the best sequence."""
    usual = {"beams": 4, "length_penalty": 1.0, "max_new_tokens": 12}
    steps = list(beam_search(net, [[1]], [source], **usual | options))
    return [step.ids[0] for step in steps], [step.logprobs[0] for step in steps]


@torch.no_grad()
def all_sequences(net, source, max_length, ends, ids=(), logprobs=()):
    """With their log-probabilities, by a full forward pass for each beginning."""
    logits = net(torch.tensor([source]), torch.tensor([[1, *ids]]))[0, -1]
    for i, logprob in enumerate(logits.log_softmax(-1).tolist()):
        longer = [*ids, i], [*logprobs, logprob]
        if i in ends or len(ids) + 1 == max_length:
            yield longer
        else:
            yield from all_sequences(net, source, max_length, ends, *longer)


def test_the_log_probabilities_are_the_models_own():
    net = alive(tiny("encoder_decoder"), vocabulary=SMALL)
    found = search(net, [1], max_new_tokens=1, processor=lambda rows, step, logprobs: logprobs - 1)
    assert found == search(net, [1], max_new_tokens=1)


ENDS = [("learned", [END]), ("relative", [END]), ("rope", [2, END])]


@pytest.mark.parametrize("position, ends", ENDS)
def test_wide_beams_find_the_best(position, ends):
    parts = {"norm": part("norm", "rmsnorm_no_weight"), "position": part("position", position)}
    net = alive(tiny("encoder_decoder", **parts), vocabulary=SMALL)
    for source in ([1, 4, 2], [3], [2, 2]):
        sequences = list(all_sequences(net, source, 3, ends))
        for penalty in (-1.0, 0.0, 0.6, 1.0, 3.0):
            scores = [sum(logprobs) / len(ids) ** penalty for ids, logprobs in sequences]
            expected_ids, expected_logprobs = sequences[scores.index(max(scores))]
            limits = {"length_penalty": penalty, "max_new_tokens": 3, "stop": ends}
            ids, logprobs = search(net, source, beams=SMALL**3, **limits)  # enough for every prefix
            assert ids == expected_ids
            assert logprobs == pytest.approx(expected_logprobs, abs=1e-10)


@pytest.mark.parametrize(
    "length_penalty, first, later, expected",
    [(3.0, 0.1, 0.99, [0] * 10), (-1.0, 0.7, 0.01, [0, END])],
)
def test_the_search_continues_while_a_longer_one_could_win(length_penalty, first, later, expected):
    """Each step has two likely tokens, 0 and the end; `first` and `later` are those of 0."""
    net = alive(tiny("encoder_decoder"), vocabulary=SMALL)
    probs = iter([first] + [later] * 9)

    def script(module, args, logits):
        p = next(probs)
        return torch.tensor([p, *[1e-9] * 4, 1 - p]).log().expand_as(logits)

    net.head.register_forward_hook(script)
    limits = {"length_penalty": length_penalty, "max_new_tokens": 10, "stop": [END]}
    assert search(net, [1], beams=2, **limits)[0] == expected


def test_logits_that_are_not_finite():
    net = alive(tiny("encoder_decoder"))
    net.head.map.weight.data[3, 0] = torch.nan
    with refused("logits are NaN or infinite", FloatingPointError):
        search(net, [1])
