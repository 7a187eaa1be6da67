"""A prefix LM: the tokens of a prefix see each other in both directions, all others those before them."""

import pytest
import torch

from configs.compose import compose
from configs.schema import IGNORE_INDEX
from data.corpus import load_data
from model.generate.decode import generate
from tests.parts import alive, part, tiny, tokens

PREFIX = torch.tensor([4, 6])
POSITIONS = ["learned", "rope", "relative"]


def make_model(**changes):
    return alive(tiny(prefix_lm=True, **changes))


def test_what_sees_what():
    model, text = make_model(), tokens(2, 9)
    before = model.hidden(text, prefix=PREFIX)
    for changed in range(9):
        other = text.clone()
        other[:, changed] = text[:, changed] % 20 + 1
        is_changed = (model.hidden(other, prefix=PREFIX) != before).any(-1)
        for row, n in enumerate(PREFIX.tolist()):
            first = 0 if changed < n else changed
            assert is_changed[row].tolist() == [place >= first for place in range(9)]


@pytest.mark.parametrize("window", [None, 3])
@pytest.mark.parametrize("position", POSITIONS)
def test_cached_decoding_with_padding_agrees_with_the_whole(position, window):
    attention = part("attention", "mha", sliding_window=window)
    model = make_model(attention=attention, position=part("position", position))
    prompts = [tokens(4, seed=1).tolist(), tokens(6, seed=2).tolist()]
    steps = generate(model, prompts, max_new_tokens=5, stop=[])
    for prompt, new in zip(prompts, zip(*steps, strict=True), strict=True):
        text = torch.tensor([[*prompt, *new]])
        logits = model(text, prefix=torch.tensor([len(prompt)]))[0, len(prompt) - 1 : -1]
        assert logits.argmax(-1).tolist() == list(new)


def test_a_run_on_pairs(start):
    """And none on text, which has no prefix."""
    options = ["model=gpt2", "model.prefix_lm=true"]
    pairs = ["data=synthetic", "data.size=200", "name=pairs", "sample.every=2", "log.every=1"]
    start(*options, *pairs)
    config = compose([*options, *pairs])
    batch = next(load_data(config).validation.evaluation(8))
    first_targets = (batch.targets != IGNORE_INDEX).int().argmax(1)
    assert batch.inputs["prefix"].tolist() == (first_targets + 1).tolist()
    assert "model.prefix_lm is for pairs" in start(*options, code=2).err
