"""The rules of a generation_config.json change the same ids as in transformers."""

from itertools import pairwise

import pytest
import torch

from model.generate.beams import beam_search
from model.generate.decode import decode
from model.generate.logits_processor import LogitsProcessor
from model.generate.sampling import Sampling
from model.hub.convert import load_hf
from tests.model.generate.test_decode import PROMPTS, collect, lively
from tests.model.hub.hub_models import END, PAD, build_hf, save

RULES = [
    {"repetition_penalty": 1.7},
    {"repetition_penalty": 0.6},
    {"no_repeat_ngram_size": 1},
    {"no_repeat_ngram_size": 3, "bad_words_ids": [[PAD]]},
    {"min_length": 9, "suppress_tokens": [7, 9, 200]},
    {"min_new_tokens": 7},
    {"begin_suppress_tokens": [*range(100)], "forced_eos_token_id": END},
    {"forced_bos_token_id": 8, "begin_suppress_tokens": [*range(150)], "min_length": 5},
    {"bad_words_ids": [[PAD], [END], [5, 6]], "forced_eos_token_id": END},
]
SOURCE = [[40, 41, 42, 40, 41], [9, 8, 7, 6, 5]]
N_NEW = 14


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """{model_type: (model of transformers, the same here)}"""
    found = {}
    for name in ("gpt2", "marian", "bart"):
        theirs = build_hf(name)
        folder = tmp_path_factory.mktemp(name)
        found[name] = theirs, load_hf(save(theirs, folder))[0].eval()
    return found


def both(pair, rules, beams=None, stop=(END,)):
    """(the new ids of transformers, ours) for the rows of SOURCE"""
    theirs, ours = pair
    usual = {"max_new_tokens": N_NEW, "do_sample": False, "early_stopping": "never"}
    usual |= {"num_beams": beams or 1, "eos_token_id": list(stop), "pad_token_id": PAD}
    usual |= {"forced_bos_token_id": None, "forced_eos_token_id": None} | rules
    output = theirs.generate(torch.tensor(SOURCE), **usual).tolist()

    prompts, inputs = SOURCE, {}
    if ours.kind == "encoder_decoder":
        prompts, inputs = [[PAD]] * len(SOURCE), {"sources": SOURCE}
    expected = [row[len(prompts[0]) :] for row in output]
    options = {"max_new_tokens": N_NEW, "stop": stop}
    found = []
    if beams is None:
        processor = LogitsProcessor(rules, prompts, N_NEW, stop)
        steps = decode(ours, prompts, processor=processor, **inputs, **options)
        found = collect(step.ids for step in steps)
    for prompt, source in zip(prompts, SOURCE, strict=True) if beams else ():
        processor = LogitsProcessor(rules, [prompt], N_NEW, stop)
        options |= {"beams": beams, "length_penalty": 1.0, "processor": processor}
        found.append([step.ids[0] for step in beam_search(ours, [prompt], [source], **options)])
    width = len(expected[0])
    return expected, [row + [PAD] * (width - len(row)) for row in found]


@pytest.mark.parametrize("beams", [None, 3])
@pytest.mark.parametrize("rules", RULES)
def test_ids_are_those_of_transformers(models, rules, beams):
    changes = 0
    for name, pair in models.items():
        if name == "gpt2" and beams:
            continue
        _, [plain, _] = both(pair, {}, beams)
        stop = [END, plain[3]]  # a likely end
        expected, found = both(pair, rules, beams, stop)
        assert found == expected, name
        changes += found != both(pair, {}, beams, stop)[1]
    assert changes


def test_samples_obey_the_rules():
    """Each row its own, also past the context of 16."""
    net = lively()
    rules = {"no_repeat_ngram_size": 2, "suppress_tokens": [3, 4, 999], "min_length": 30}
    processor = LogitsProcessor(rules, PROMPTS, 40, [5])
    options = {"max_new_tokens": 40, "sampling": Sampling(1.0), "stop": [5]}
    steps = list(decode(net, PROMPTS, processor=processor, **options))
    for prompt, new in zip(PROMPTS, collect(step.ids for step in steps), strict=True):
        assert not {3, 4} & {*new}
        assert len(prompt) + len(new) >= 30
        pairs = [*pairwise([prompt[-1], *new[: net.context_length - len(prompt)]])]
        assert len(pairs) == len({*pairs})
