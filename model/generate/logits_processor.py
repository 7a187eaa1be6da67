"""Logits processor: the rules of an imported generation_config.json, by the classes of
transformers."""

import json
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle

import torch
from torch import Tensor

from model.generate.decode import Rows

NAMES = """
    repetition_penalty no_repeat_ngram_size bad_words_ids min_length min_new_tokens
    forced_bos_token_id forced_eos_token_id suppress_tokens begin_suppress_tokens
"""


def generation_rules(settings: str, options: Namespace) -> dict:
    """The rules in a generation_config.json, except those that the command line overrides. A 0, an
    empty list or a penalty of 1 is no rule, unless it is the id of a forced token."""
    found = json.loads(settings)
    is_neutral = found.get("repetition_penalty") == 1

    if is_neutral or options.repetition_penalty is not None:
        found["repetition_penalty"] = None
    given = {name: found.get(name) for name in NAMES.split()}

    return {
        name: value
        for name, value in given.items()
        if value or (value == 0 and name.startswith("forced"))
    }


@dataclass
class LogitsProcessor:
    """Forbids tokens, whose logits become -inf, or forces one."""

    rules: dict
    prompts: Rows
    max_new_tokens: int
    stop: Sequence[int]

    def __call__(self, rows: Rows, step: int, logits_BV: Tensor) -> Tensor:
        """The logits of each row, `step` tokens after its prompt. All beams share one prompt."""
        processed = []

        for row, prompt, logits_1V in zip(rows, cycle(self.prompts), logits_BV.split(1)):
            # a row that slides has dropped tokens, which some rules count
            n_dropped = len(prompt) + step - len(row)
            ids = logits_1V.new_tensor([row[:1] * n_dropped + row], dtype=torch.long)

            for apply in self.processors(len(prompt), ids.new_tensor(self.stop)):
                logits_1V = apply(ids, logits_1V)
            processed.append(logits_1V)
        return torch.cat(processed)

    def processors(self, n_prompt: int, stop: Tensor) -> list:
        from model.hub.family import load_transformers

        theirs = load_transformers()

        begin = n_prompt + (n_prompt == 1 and "forced_bos_token_id" in self.rules)
        longest = n_prompt + self.max_new_tokens

        known = {
            "repetition_penalty": lambda x: theirs.RepetitionPenaltyLogitsProcessor(float(x)),
            "no_repeat_ngram_size": theirs.NoRepeatNGramLogitsProcessor,
            "bad_words_ids": lambda words: theirs.NoBadWordsLogitsProcessor(words, stop),
            "min_length": lambda n: theirs.MinLengthLogitsProcessor(n, stop),
            "min_new_tokens": lambda n: theirs.MinNewTokensLengthLogitsProcessor(n_prompt, n, stop),
            "forced_bos_token_id": theirs.ForcedBOSTokenLogitsProcessor,
            "forced_eos_token_id": lambda i: theirs.ForcedEOSTokenLogitsProcessor(longest, i),
            "suppress_tokens": theirs.SuppressTokensLogitsProcessor,
            "begin_suppress_tokens": lambda ids: theirs.SuppressTokensAtBeginLogitsProcessor(
                ids, begin
            ),
        }

        return [known[name](value) for name, value in self.rules.items()]
