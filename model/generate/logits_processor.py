"""Logits processor: the rules of an imported generation_config.json, applied as transformers
does."""

import json
import math
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import Any

from torch import Tensor

from model.generate.decode import Rows
from model.generate.sampling import penalize

NO_RULES: dict[str, Any] = {
    "repetition_penalty": 1.0,
    "no_repeat_ngram_size": 0,
    "bad_words_ids": [],
    "suppress_tokens": [],
    "begin_suppress_tokens": [],
    "min_length": 0,
    "min_new_tokens": 0,
    "forced_bos_token_id": None,
    "forced_eos_token_id": None,
}


def generation_rules(settings: str, options: Namespace) -> dict[str, Any]:
    """The rules in a generation_config.json, except those that the command line overrides; {} if
    there are none."""
    found = json.loads(settings)
    rules = {name: found[name] for name in NO_RULES if found.get(name) is not None}
    if options.repetition_penalty is not None:
        rules.pop("repetition_penalty", None)
    return NO_RULES | rules if rules else {}


@dataclass
class LogitsProcessor:
    """Forbids tokens, whose logits become -inf, or forces one."""

    rules: dict[str, Any]  # the keys of NO_RULES, which are names of transformers
    prompts: Rows
    max_new_tokens: int
    stop: Sequence[int]

    def __call__(self, rows: Rows, step: int, logits_BV: Tensor) -> Tensor:
        """The logits of each row, `step` tokens after its prompt. All beams share one prompt."""
        logits_BV = logits_BV.clone()
        for row, prompt, logits_V in zip(rows, cycle(self.prompts), logits_BV, strict=False):
            logits_V[row] = penalize(logits_V[row], self.rules["repetition_penalty"])
            forbidden = self.forbidden(row, len(prompt), step)
            logits_V[[i for i in forbidden if i < len(logits_V)]] = -math.inf
            if len(row) == 1:
                force(self.rules["forced_bos_token_id"], logits_V)
            if step + 1 == self.max_new_tokens:
                force(self.rules["forced_eos_token_id"], logits_V)
        return logits_BV

    def forbidden(self, row: list[int], n_prompt: int, step: int) -> list[int]:
        """The last tokens of sequences that the row must not complete."""
        rules = self.rules
        ends = [[i] for i in self.stop]
        banned = [word for word in rules["bad_words_ids"] if word not in ends]
        banned += [[i] for i in rules["suppress_tokens"]]
        is_forced = n_prompt == 1 and rules["forced_bos_token_id"] is not None
        if step == is_forced:  # the first token that is not forced
            banned += [[i] for i in rules["begin_suppress_tokens"]]
        if n_prompt + step < rules["min_length"] or step < rules["min_new_tokens"]:
            banned += ends
        if size := rules["no_repeat_ngram_size"]:
            banned += [row[start : start + size] for start in range(len(row) - size + 1)]
        return [last for *before, last in banned if row[len(row) - len(before) :] == before]


def force(i: int | None, logits_V: Tensor) -> None:
    if i is not None:
        logits_V.fill_(-math.inf)
        logits_V[i] = 0.0
