"""Decoding around the context length, ends and errors. (That it equals full forward passes with every
part is in test_grid_in_use.py.)"""

import pytest
import torch

from model.generate.decode import decode, generate
from model.generate.sampling import GREEDY, Sampling, sample_next, uniform
from tests.parts import VOCABULARY, alive, part, refused, tiny, tokens


def lively(kind="decoder", **changes):
    """A model whose most likely token changes at every step, since no bias dominates."""
    parts = {"norm": part("norm", "rmsnorm_no_weight"), "ffn": part("ffn", "swiglu")}
    return alive(tiny(kind, **parts, **changes))


def collect(steps):
    """Rows of ids from an iterator over steps."""
    rows = zip(*steps, strict=True)
    return [[i for i in row if i is not None] for row in rows]


@torch.no_grad()
def uncached(net, prompts, max_new_tokens, sources=None, sampling=GREEDY):
    """The same by forward passes without a cache; past the context, the newer half continues."""
    rows = []
    for row_id, prompt in enumerate(prompts):
        row = list(prompt)
        seen_BV = torch.zeros(1, VOCABULARY, dtype=torch.bool)
        seen_BV[0, row] = True
        new = []
        for step in range(max_new_tokens):
            if len(row) > net.context_length:
                row = row[-(net.context_length // 2 or 1) :]
            text = torch.tensor([row])
            logits = net(torch.tensor([sources[row_id]]), text) if sources else net(text)
            draws = logits.new_tensor([uniform(sampling.seed, row_id, step)])
            new.append(sample_next(logits[:, -1], seen_BV, draws, sampling).item())
            row.append(new[-1])
            seen_BV[0, new[-1]] = True
        rows.append(new)
    return rows


def texts(*lengths):
    return [tokens(n, seed=n).tolist() for n in lengths]


PROMPTS = texts(5, 1, 9)
SOURCES = [tokens(n, seed=50 + n).tolist() for n in (7, 12, 2)]
HOT = Sampling(temperature=1.5, top_k=20, top_p=0.95, repetition_penalty=1.3, seed=7)


def test_around_the_context_length():
    """A row may fill the context, whatever the others do."""
    net = lively()
    prompts = texts(16, 15, 14, 3)
    for count in (1, 2, 3, 4):
        expected = uncached(net, prompts, count)
        assert collect(generate(net, prompts, max_new_tokens=count)) == expected
    net = lively(context_length=1)
    assert collect(generate(net, [[3]], max_new_tokens=4)) == uncached(net, [[3]], 4)


def test_a_sliding_row_costs_the_others_nothing():
    """A batch of rows of all lengths reads hardly more tokens than each row alone."""
    net = lively(position=part("position", "rope"))
    reads = []
    net.stack.register_forward_pre_hook(lambda _, args: reads.append(args[0].shape[:2].numel()))
    prompts = texts(*range(1, 17))
    alone = []
    for prompt in prompts:
        alone += collect(generate(net, [prompt], max_new_tokens=40))
    reads_alone = sum(reads)
    assert collect(generate(net, prompts, max_new_tokens=40)) == alone
    padding = sum(range(16))
    assert sum(reads) - reads_alone <= 1.05 * reads_alone + padding


def test_it_ends_when_all_rows_have():
    """(That each row stops on its own is compared with transformers in test_logits_processor.py.)"""
    net = lively()
    [[first]] = generate(net, PROMPTS[:1], max_new_tokens=1)
    assert list(generate(net, PROMPTS[:1], max_new_tokens=12, stop=[first])) == [[first]]


ERRORS = [
    ("decoder", {"prompts": [[]]}, "a prompt has 0 tokens; the context length is 16"),
    ("decoder", {"prompts": [[1] * 17]}, "a prompt has 17 tokens; the context length is 16"),
    ("decoder", {"prompts": [[1, 23]]}, "token ids are 1 to 23; expected 0 to 22"),
    ("decoder", {"sources": [[1]]}, "a decoder needs 0 sources"),
    ("encoder_decoder", {}, "an? encoder_decoder needs 1 sources"),
    ("encoder", {}, "an encoder cannot generate text"),
    ("decoder", {"max_new_tokens": 0}, "max_new_tokens is 0; expected an integer at least 1"),
]


@pytest.mark.parametrize("kind, options, sentence", ERRORS)
def test_errors(kind, options, sentence):
    usual = {"prompts": [[1]], "max_new_tokens": 1}
    with refused(sentence):
        list(generate(alive(tiny(kind)), **usual | options))


def test_a_model_in_training_mode_is_refused():
    with refused(r"call model.eval\(\) first"):
        list(generate(alive(tiny()).train(), [[1]], max_new_tokens=1))


@pytest.mark.parametrize("sampling", [GREEDY, HOT, Sampling(1.0)])
@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_logits_that_are_not_finite(value, sampling):
    net = alive(tiny())
    # one of the two logits is not -inf
    net.head.map.weight.data[3:5, 0] = torch.tensor([value, -value])
    with refused("logits are NaN or infinite", FloatingPointError):
        list(generate(net, [[1], [2]], max_new_tokens=1, sampling=sampling))


def test_logprobs_of_16_bit_logits_are_those_of_float32():
    net = alive(tiny()).bfloat16()
    [step] = decode(net, [[1]], max_new_tokens=1)
    logprobs = net(torch.tensor([[1]]))[0, 0].float().log_softmax(-1)
    assert step.logprobs == [pytest.approx(logprobs.max().item())]
