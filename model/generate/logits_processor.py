"""Logits processor: the rules of an imported generation_config.json, as transformers applies them."""

import math
from collections.abc import Sequence
from itertools import cycle
from typing import Any

import torch
from torch import Tensor

from model.generate.decode import Rows

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


class LogitsProcessor:
    """Forbids tokens, whose logits become -inf, or forces one. `rules` have the names of
    transformers."""

    def __init__(
        self, rules: dict[str, Any], prompts: Rows, max_new_tokens: int, stop: Sequence[int]
    ) -> None:
        given = {name: rules[name] for name in NO_RULES if rules.get(name) is not None}
        self.is_active = given != {name: NO_RULES[name] for name in given}
        self.rules = NO_RULES | given
        self.prompts = prompts
        self.last = max_new_tokens - 1
        self.stop = stop

    def __call__(self, rows: Rows, step: int, logits_BV: Tensor) -> Tensor:
        """The logits of each row, `step` tokens after its prompt. All beams have one prompt."""
        rules = self.rules
        logits_BV = logits_BV.clone()
        for row, prompt, logits_V in zip(rows, cycle(self.prompts), logits_BV, strict=False):
            penalty = rules["repetition_penalty"]
            seen = logits_V[row]
            logits_V[row] = torch.where(seen > 0, seen / penalty, seen * penalty)

            forbidden = self.forbidden(row, len(prompt), step)
            known = [i for i in forbidden if i < len(logits_V)]
            logits_V[known] = -math.inf

            forced = rules["forced_bos_token_id"] if len(row) == 1 else None
            if step == self.last and rules["forced_eos_token_id"] is not None:
                forced = rules["forced_eos_token_id"]
            if forced is not None:
                logits_V.fill_(-math.inf)[forced] = 0.0
        return logits_BV

    def forbidden(self, row: list[int], n_prompt: int, step: int) -> list[int]:
        rules = self.rules
        ids = list(rules["suppress_tokens"])
        is_forced = n_prompt == 1 and rules["forced_bos_token_id"] is not None
        if step == is_forced:  # the first token that is free
            ids += rules["begin_suppress_tokens"]
        if n_prompt + step < rules["min_length"] or step < rules["min_new_tokens"]:
            ids += self.stop

        ends = [[i] for i in self.stop]
        banned = [word for word in rules["bad_words_ids"] if word not in ends]
        if size := rules["no_repeat_ngram_size"]:
            banned += [row[start : start + size] for start in range(len(row) - size + 1)]
        for *before, last in banned:
            if row[len(row) - len(before) :] == before:
                ids.append(last)
        return ids
