"""Decoding through the KV cache equals full forward passes, for every row on its own."""

import pytest
import torch
from torch.overrides import TorchFunctionMode

from model.generate.decode import decode, generate
from model.generate.sampling import GREEDY, Sampling, sample_next, uniform
from tests.parts import VOCABULARY, alive, names, part, tiny, tokens


def lively(kind="decoder", **changes):
    """A model whose most likely token changes at every step, since no bias dominates."""
    return alive(
        tiny(kind, norm=part("norm", "rmsnorm_no_weight"), ffn=part("ffn", "swiglu"), **changes)
    )


def collect(steps):
    """Rows of ids from an iterator over steps."""
    rows = zip(*steps, strict=True)
    return [[i for i in row if i is not None] for row in rows]


@torch.no_grad()
def uncached(net, prompt, count, source=None, sampling=GREEDY, row_id=0):
    """The same by forward passes without a cache; past the context, the newer half continues."""
    row, seen = list(prompt), list(prompt)
    for step in range(count):
        if len(row) > net.context_length:
            row = row[-(net.context_length // 2) :]
        text = torch.tensor([row])
        logits = net(text) if source is None else net(torch.tensor([source]), text)
        seen_BV = torch.zeros(1, VOCABULARY, dtype=torch.bool).index_fill(
            1, torch.tensor(seen), True
        )
        new = sample_next(
            logits[:, -1], seen_BV, [uniform(sampling.seed, row_id, step)], sampling
        ).item()
        row.append(new)
        seen.append(new)
    return seen[len(prompt) :]


PROMPTS = [tokens(n, seed=n).tolist() for n in (5, 1, 9)]
SOURCES = [tokens(n, seed=50 + n).tolist() for n in (7, 12, 2)]
HOT = Sampling(temperature=1.5, top_k=20, top_p=0.95, repetition_penalty=1.3, seed=7)


@pytest.mark.parametrize("sampling", [GREEDY, HOT], ids=["greedy", "hot"])
@pytest.mark.parametrize("position", names("position"))
@pytest.mark.parametrize("attention", ["mha_nobias", "gqa", "mla"])
def test_decoder(attention, position, sampling):
    net = lively(attention=part("attention", attention), position=part("position", position))
    options = {"max_new_tokens": 20, "sampling": sampling}  # exceeds the context of 16
    expected = [uncached(net, prompt, 20, None, sampling, i) for i, prompt in enumerate(PROMPTS)]
    assert len({tuple(row) for row in expected}) == 3
    assert collect(generate(net, PROMPTS, **options)) == expected
    for i, row in enumerate(expected):
        assert collect(generate(net, [PROMPTS[i]], row_ids=[i], **options)) == [row]


@pytest.mark.parametrize("sampling", [GREEDY, HOT], ids=["greedy", "hot"])
@pytest.mark.parametrize("position", names("position"))
def test_encoder_decoder(position, sampling):
    net = lively("encoder_decoder", position=part("position", position))
    options = {"sources": SOURCES, "max_new_tokens": 20, "sampling": sampling}
    expected = [uncached(net, PROMPTS[i], 20, SOURCES[i], sampling, i) for i in range(3)]
    assert collect(generate(net, PROMPTS, **options)) == expected
    targets = collect(generate(net, [[1]] * 3, sources=SOURCES, max_new_tokens=8))
    assert len({tuple(target) for target in targets}) == 3, "the source matters"


@pytest.mark.parametrize("attention", names("attention"))
def test_chunked_prefill(attention):
    """Whether the prompt is read at once or in chunks of any size, the continuation is the same."""
    net, prompt = lively(attention=part("attention", attention)), tokens(1, 12, seed=4)
    [expected] = collect(generate(net, prompt.tolist(), max_new_tokens=4))
    for sizes in ([12], [5, 7], [1] * 12, [3, 1, 8]):
        caches, row = net.new_caches(16), []
        with torch.no_grad():
            for chunk in prompt.split(sizes, 1):
                logits = net(chunk, caches=caches)
            for _ in range(4):
                row.append(logits[0, -1].argmax().item())
                logits = net(torch.tensor([row[-1:]]), caches=caches)
        assert row == expected


def test_around_the_context_length():
    """A row may fill the context, whatever the others do; with one more token its newer half continues."""
    net, prompts = lively(), [tokens(n, seed=n).tolist() for n in (16, 15, 14, 3)]
    for count in (1, 2, 3, 4):
        expected = [uncached(net, prompt, count) for prompt in prompts]
        assert collect(generate(net, prompts, max_new_tokens=count)) == expected
    lengths = []
    net.stack.register_forward_pre_hook(lambda module, args: lengths.append(args[0].shape[1]))
    list(generate(net, [prompts[2]], max_new_tokens=5))
    assert lengths == [14, 1, 1, 8, 1]


@pytest.mark.parametrize("kind", ["decoder", "encoder_decoder"])
def test_a_sliding_row_costs_the_others_nothing(kind):
    """A batch of rows of all lengths reads hardly more tokens than each row alone, and generates the same."""
    net = lively(kind, position=part("position", "rope"))
    stack, reads = net.stack if kind == "decoder" else net.decoder, []
    stack.register_forward_pre_hook(lambda module, args: reads.append(args[0].shape[:2].numel()))
    prompts = [tokens(n, seed=n).tolist() for n in range(1, 17)]
    sources = None if kind == "decoder" else [tokens(n, seed=30 + n).tolist() for n in range(1, 17)]
    batched = collect(generate(net, prompts, sources=sources, max_new_tokens=40))
    batched_reads, alone = sum(reads), []
    reads.clear()
    for number, prompt in enumerate(prompts):
        source = None if sources is None else [sources[number]]
        alone += collect(generate(net, [prompt], sources=source, max_new_tokens=40))
    padding = sum(16 - len(prompt) for prompt in prompts)
    assert batched == alone and batched_reads <= 1.05 * sum(reads) + padding


@pytest.mark.parametrize("n_stops", [1, 2])
def test_each_row_stops_on_its_own(n_stops):
    net = lively()
    full = collect(generate(net, PROMPTS, max_new_tokens=12))
    stops = [full[0][3], full[-1][2]][:n_stops]
    steps = list(generate(net, PROMPTS, max_new_tokens=12, stop=stops if n_stops > 1 else stops[0]))
    for row, expected in zip(collect(steps), full, strict=True):
        ends = [n for n, i in enumerate(expected, 1) if i in stops]
        assert row == expected[: ends[0] if ends else None]
    assert any(i is None for i in steps[-1]) or len(steps) < 12
    alone = list(generate(net, PROMPTS[:1], max_new_tokens=12, stop=full[0][0]))
    assert alone == [[full[0][0]]], "it ends when all rows have"


@pytest.mark.parametrize(
    ("kind", "options", "sentence"),
    [
        ("decoder", {"prompts": [[]]}, "a prompt has 0 tokens; the context length is 16"),
        ("decoder", {"prompts": [[1] * 17]}, "a prompt has 17 tokens; the context length is 16"),
        ("decoder", {"prompts": [[1, 23]]}, "a prompt has ids 1 to 23; expected 0 to 22"),
        ("decoder", {"sources": [[1]]}, "got 1 sources; this decoder needs 0"),
        ("encoder_decoder", {}, "got 0 sources; this encoder_decoder needs 1"),
        ("encoder_decoder", {"sources": [[1], [2]]}, "got 2 sources; this encoder_decoder needs 1"),
        (
            "encoder_decoder",
            {"sources": [(1, 2)]},
            "sources are .*; expected a list of lists of token ids",
        ),
        ("encoder", {}, "an encoder cannot generate text"),
        ("decoder", {"prompts": []}, "prompts are '\\[\\]'; expected a list of lists"),
        ("decoder", {"prompts": [[True]]}, "prompts are '\\[\\[True\\]\\]'"),
        (
            "decoder",
            {"max_new_tokens": 0},
            "max_new_tokens is 0; expected an integer from 1 to 1,000,000",
        ),
        ("decoder", {"stop": 23}, "stop is 23; expected an integer from 0 to 22 or a list or null"),
        ("decoder", {"row_ids": [1, 2]}, "got 2 row ids and 1 prompts"),
    ],
)
def test_errors(kind, options, sentence):
    with pytest.raises(ValueError, match=sentence) as failure:
        list(generate(alive(tiny(kind)), **{"prompts": [[1]], "max_new_tokens": 1} | options))
    assert "\n" not in str(failure.value)


def test_a_model_in_training_mode_is_refused():
    with pytest.raises(ValueError, match=r"call model.eval\(\) first"):
        list(generate(alive(tiny()).train(), [[1]], max_new_tokens=1))


@pytest.mark.parametrize(
    "sampling", [GREEDY, HOT, Sampling(1.0)], ids=["greedy", "hot", "sampling"]
)
@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_logits_that_are_not_finite(value, sampling):
    net = alive(tiny())
    net.head.map.weight.data[3:5, 0] = torch.tensor(
        [value, -value]
    )  # one of the two logits is not -inf
    with pytest.raises(FloatingPointError, match="logits are NaN or infinite"):
        list(generate(net, [[1], [2]], max_new_tokens=1, sampling=sampling))


WAITS = {
    "tolist",
    "item",
    "__bool__",
    "__int__",
    "__float__",
    "__index__",
    "cpu",
    "numpy",
    "nonzero",
}


class Waits(TorchFunctionMode):
    """Counts the calls in which the host would wait for a GPU."""

    count = 0

    def __torch_function__(self, function, types, args=(), kwargs=None):
        self.count += getattr(function, "__name__", "") in WAITS
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("sampling", [GREEDY, HOT], ids=["greedy", "hot"])
@pytest.mark.parametrize("kind", ["decoder", "encoder_decoder"])
def test_a_step_waits_for_the_device_once(kind, sampling):
    net, sources = lively(kind), SOURCES if kind == "encoder_decoder" else None
    with Waits() as waits:
        steps = list(decode(net, PROMPTS, sources=sources, max_new_tokens=6, sampling=sampling))
    assert waits.count == len(steps) == 6
    with Waits() as waits:
        steps[0].logprobs()
    assert waits.count == 1
