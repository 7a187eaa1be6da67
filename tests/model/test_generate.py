"""Decoding through the cache gives what whole forward passes give, for every row by itself."""

import pytest
import torch

from model.attention import MultiHeadLatentAttention
from model.generate.decode import generate
from model.generate.sampling import GREEDY, sample_next, uniform
from tests.parts import VOCABULARY, alive, names, part, tiny, tokens


def talkative(kind="decoder", **changes):
    """A model whose likeliest word changes with every token, for want of a bias that always wins."""
    return alive(tiny(kind, norm=part("norm", "rmsnorm_no_weight"), ffn=part("ffn", "swiglu"), **changes))


def finish(steps):
    """Rows of ids from an iterator over steps."""
    rows = zip(*steps, strict=True)
    return [[i for i in row if i is not None] for row in rows]


@torch.no_grad()
def slowly(net, prompt, count, source=None, sampling=GREEDY, number=0):
    """The same by forward passes without a cache; past the context, the newer half goes on."""
    row, written = list(prompt), list(prompt)
    for step in range(count):
        if len(row) > net.context_length:
            row = row[-(net.context_length // 2) :]
        text = torch.tensor([row])
        logits = net(text) if source is None else net(torch.tensor([source]), text)
        seen = torch.zeros(1, VOCABULARY, dtype=torch.bool).index_fill(1, torch.tensor(written), True)
        chosen = sample_next(logits[:, -1], seen, [uniform(sampling.seed, number, step)], sampling).item()
        row.append(chosen)
        written.append(chosen)
    return written[len(prompt) :]


PROMPTS = [tokens(n, seed=n).tolist() for n in (5, 1, 9)]
SOURCES = [tokens(n, seed=50 + n).tolist() for n in (7, 12, 2)]


@pytest.mark.parametrize("position", names("position"))
@pytest.mark.parametrize("attention", ["mha_nobias", "gqa", "mla"])
def test_decoder(attention, position):
    net = talkative(attention=part("attention", attention), position=part("position", position))
    expected = [slowly(net, prompt, 20) for prompt in PROMPTS]  # crosses the context of 16
    assert len({tuple(row) for row in expected}) == 3
    assert finish(generate(net, PROMPTS, max_new_tokens=20)) == expected
    for prompt, row in zip(PROMPTS, expected, strict=True):
        assert finish(generate(net, [prompt], max_new_tokens=20)) == [row]


@pytest.mark.parametrize("position", names("position"))
def test_encoder_decoder(position):
    net = talkative("encoder_decoder", position=part("position", position))
    expected = [slowly(net, p, 20, s) for p, s in zip(PROMPTS, SOURCES, strict=True)]
    assert finish(generate(net, PROMPTS, sources=SOURCES, max_new_tokens=20)) == expected


@pytest.mark.parametrize("attention", names("attention"))
def test_a_prompt_in_chunks_is_the_prompt(attention):
    """Read at once or in pieces of any size, it goes on alike."""
    net, prompt = talkative(attention=part("attention", attention)), tokens(1, 12, seed=4)
    [expected] = finish(generate(net, prompt.tolist(), max_new_tokens=4))
    for sizes in ([12], [5, 7], [1] * 12, [3, 1, 8]):
        caches, row = net.new_caches(16), []
        with torch.no_grad():
            for piece in prompt.split(sizes, 1):
                logits = net(piece, caches=caches)
            for _ in range(4):
                row.append(logits[0, -1].argmax().item())
                logits = net(torch.tensor([row[-1:]]), caches=caches)
        assert row == expected


@pytest.mark.parametrize("absorb", [True, False])
def test_latent_attention_writes_the_same_in_both_forms(absorb, monkeypatch):
    net = talkative(attention=part("attention", "mla"), position=part("position", "rope"))
    expected = finish(generate(net, PROMPTS, max_new_tokens=20))
    monkeypatch.setattr(MultiHeadLatentAttention, "absorbing_is_cheaper", lambda *a: absorb)
    assert finish(generate(net, PROMPTS, max_new_tokens=20)) == expected


def test_around_the_context():
    """A row may fill the context, whatever the others do; one token more, and its newer half goes on."""
    net, prompts = talkative(), [tokens(n, seed=n).tolist() for n in (16, 15, 14, 3)]
    for count in (1, 2, 3, 4):
        expected = [slowly(net, prompt, count) for prompt in prompts]
        assert finish(generate(net, prompts, max_new_tokens=count)) == expected
    lengths = []
    net.stack.register_forward_pre_hook(lambda module, given: lengths.append(given[0].shape[1]))
    list(generate(net, [prompts[2]], max_new_tokens=5))
    assert lengths == [14, 1, 1, 8, 1]


@pytest.mark.parametrize("kind", ["decoder", "encoder_decoder"])
def test_past_the_context_no_row_is_read_for_another(kind):
    """Together rows of all lengths read hardly more than each would alone, and write the same."""
    net = talkative(kind, position=part("position", "rope"))
    stack, read = net.stack if kind == "decoder" else net.decoder, []
    stack.register_forward_pre_hook(lambda module, given: read.append(given[0].shape[:2].numel()))
    prompts = [tokens(n, seed=n).tolist() for n in range(1, 17)]
    sources = None if kind == "decoder" else [tokens(n, seed=30 + n).tolist() for n in range(1, 17)]
    together = finish(generate(net, prompts, sources=sources, max_new_tokens=40))
    reads, alone = sum(read), []
    read.clear()
    for number, prompt in enumerate(prompts):
        own = None if sources is None else [sources[number]]
        alone += finish(generate(net, [prompt], sources=own, max_new_tokens=40))
    padding = sum(16 - len(prompt) for prompt in prompts)
    assert together == alone and reads <= 1.05 * sum(read) + padding


def test_the_source_matters():
    net = talkative("encoder_decoder")
    answers = finish(generate(net, [[1]] * 3, sources=SOURCES, max_new_tokens=8))
    assert len({tuple(answer) for answer in answers}) == 3


def test_each_row_ends_by_itself():
    net = talkative()
    full = finish(generate(net, PROMPTS, max_new_tokens=12))
    stop = full[0][3]
    steps = list(generate(net, PROMPTS, max_new_tokens=12, stop=stop))
    for row, whole in zip(finish(steps), full, strict=True):
        end = whole.index(stop) + 1 if stop in whole else len(whole)
        assert row == whole[:end]
    assert any(i is None for i in steps[-1]) or len(steps) < 12


def test_it_ends_when_all_rows_have():
    net = talkative()
    [first] = finish(generate(net, PROMPTS[:1], max_new_tokens=6))
    steps = list(generate(net, PROMPTS[:1], max_new_tokens=6, stop=first[0]))
    assert steps == [[first[0]]]


def test_each_step_after_the_prompt_reads_one_token():
    net, lengths = talkative(), []
    net.stack.register_forward_pre_hook(lambda module, given: lengths.append(given[0].shape[1]))
    list(generate(net, [PROMPTS[0]], max_new_tokens=6))
    assert lengths == [5, 1, 1, 1, 1, 1]


@pytest.mark.parametrize(
    ("kind", "given", "sentence"),
    [
        ("decoder", {"prompts": [[]]}, "a prompt is empty; it needs at least one token"),
        ("decoder", {"prompts": [[1] * 17]}, "a prompt has 17 tokens and the model's context is 16"),
        ("decoder", {"prompts": [[1, 23]]}, "a prompt has ids from 1 to 23; the vocabulary has 23"),
        ("decoder", {"prompts": [[-1]]}, "a prompt has ids from -1 to -1"),
        ("decoder", {"prompts": [[1]], "sources": [[1]]}, "sources go with an encoder_decoder"),
        ("encoder_decoder", {"prompts": [[1]]}, "an encoder_decoder with sources"),
        ("encoder_decoder", {"prompts": [[1]], "sources": [[]]}, "a source is empty"),
        ("encoder_decoder", {"prompts": [[1]], "sources": [[1], [2]]}, "there are 2 sources and 1 prompts"),
        ("encoder", {"prompts": [[1]]}, "an encoder fills in masked tokens"),
        ("decoder", {"prompts": []}, "prompts must be lists of token ids in a list and are '\\[\\]'"),
        ("decoder", {"prompts": [1, 2]}, "in a list and are '\\[1, 2\\]'"),
        ("decoder", {"prompts": torch.ones(2, 3).long()}, "in a list and are 'tensor"),
        ("decoder", {"prompts": [[1, 2.0]]}, "a prompt has 2.0, which is no token id"),
        ("decoder", {"prompts": [[True]]}, "a prompt has True, which is no token id"),
        ("decoder", {"prompts": [["a"]]}, "a prompt has 'a', which is no token id"),
        ("encoder_decoder", {"prompts": [[1]], "sources": [(1, 2)]}, "sources must be lists of token ids"),
        (
            "decoder",
            {"prompts": [[1]], "max_new_tokens": 0},
            "max_new_tokens must be .* to 1,000,000 and is 0",
        ),
        ("decoder", {"prompts": [[1]], "max_new_tokens": 2.5}, "max_new_tokens must be a whole number"),
        (
            "decoder",
            {"prompts": [[1]], "stop": 23},
            "stop must be an id of the vocabulary, below 23, or None",
        ),
        ("decoder", {"prompts": [[1]], "stop": "a"}, "stop must be .* and is 'a'"),
    ],
)
def test_errors(kind, given, sentence):
    with pytest.raises(ValueError, match=sentence) as failure:
        generate(alive(tiny(kind)), **{"max_new_tokens": 1} | given)
    assert "\n" not in str(failure.value)


def test_a_model_in_training_is_refused():
    with pytest.raises(ValueError, match=r"call model.eval\(\) first"):
        generate(alive(tiny()).train(), [[1]], max_new_tokens=1)
