"""Logits processor: the rules of an imported generation_config.json, as transformers applies them."""

import math
from dataclasses import dataclass
from itertools import cycle
from typing import Any

import torch
from torch import Tensor

from model.generate.decode import Rows

RULES = (
    "repetition_penalty",
    "no_repeat_ngram_size",
    "bad_words_ids",
    "suppress_tokens",
    "begin_suppress_tokens",
    "min_length",
    "min_new_tokens",
    "forced_bos_token_id",
    "forced_eos_token_id",
)


@dataclass
class LogitsProcessor:
    """Forbids tokens, whose logits become -inf, or forces one. `rules` have the names of
    transformers."""

    rules: dict[str, Any]
    prompts: Rows
    max_new_tokens: int
    stop: list[int]

    def __call__(self, rows: Rows, step: int, logits_BV: Tensor) -> Tensor:
        """The logits of each row, `step` tokens after its prompt. All beams have one prompt."""
        rules = self.rules
        logits_BV = logits_BV.clone()
        for row, prompt, logits_V in zip(rows, cycle(self.prompts), logits_BV, strict=False):
            penalty = rules.get("repetition_penalty", 1.0)
            seen = logits_V[row]
            logits_V[row] = torch.where(seen > 0, seen / penalty, seen * penalty)

            forbidden = self.forbidden(row, len(prompt), step)
            known = [i for i in forbidden if i < len(logits_V)]
            logits_V[known] = -math.inf

            forced = rules.get("forced_bos_token_id") if len(row) == 1 else None
            if step == self.max_new_tokens - 1:
                forced = rules.get("forced_eos_token_id", forced)
            if forced is not None:
                logits_V.fill_(-math.inf)[forced] = 0.0
        return logits_BV

    def forbidden(self, row: list[int], n_prompt: int, step: int) -> list[int]:
        rules = self.rules
        ids = list(rules.get("suppress_tokens", []))
        is_forced = n_prompt == 1 and "forced_bos_token_id" in rules
        if step == is_forced:  # the first token that is free
            ids += rules.get("begin_suppress_tokens", [])
        if n_prompt + step < rules.get("min_length", 0) or step < rules.get("min_new_tokens", 0):
            ids += self.stop

        words = rules.get("bad_words_ids", [])
        banned = [word for word in words if word not in [[i] for i in self.stop]]
        if size := rules.get("no_repeat_ngram_size", 0):
            banned += [row[start : start + size] for start in range(len(row) - size + 1)]
        for *before, last in banned:
            if row[len(row) - len(before) :] == before:
                ids.append(last)
        return ids
