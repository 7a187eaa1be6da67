"""Logits processor: the rules of an imported generation_config.json, as transformers applies them."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from model.generate.decode import Rows
from model.generate.sampling import apply_repetition_penalty


class LogitsProcessor:
    """The logits of a token that a rule forbids become -inf. `rules` have the names that
    transformers gives them, and are those of one batch of prompts."""

    def __init__(
        self, rules: dict[str, Any], prompts: Rows, max_new_tokens: int, stop: Sequence[int]
    ) -> None:
        self.rules = {name: value for name, value in rules.items() if value is not None}
        self.prompt_lengths = [len(prompt) for prompt in prompts]
        self.max_new_tokens = max_new_tokens
        self.stop = list(stop)

    def __call__(self, rows: Rows, step: int, logits_BV: Tensor) -> Tensor:
        """The logits of each row, `step` tokens after its prompt. All beams have one prompt."""
        lengths = self.prompt_lengths
        if len(lengths) == 1:
            lengths = lengths * len(rows)
        processed = []
        for row, length, logits_V in zip(rows, lengths, logits_BV, strict=True):
            processed.append(self.process(row, length, step, logits_V))
        return torch.stack(processed)

    def process(self, row: list[int], prompt_length: int, step: int, logits_V: Tensor) -> Tensor:
        """The rules come in the order of transformers: a token is forced though it is forbidden,
        but not if it is suppressed."""
        if penalty := self.rules.get("repetition_penalty"):
            seen_V = torch.zeros_like(logits_V, dtype=torch.bool)
            seen_V[row] = True
            logits_V = apply_repetition_penalty(logits_V, seen_V, penalty)
        length = prompt_length + step
        logits_V = forbid(logits_V, self.forbidden(row, length, step))

        forced = self.forced(length, step)
        if forced is not None:
            logits_V = torch.full_like(logits_V, -math.inf)
            logits_V[forced] = 0.0
        return forbid(logits_V, self.suppressed(prompt_length, step))

    def forbidden(self, row: list[int], length: int, step: int) -> list[int]:
        rules = self.rules
        ids = []
        if size := rules.get("no_repeat_ngram_size"):
            ids += repeats(row, size)
        for word in rules.get("bad_words_ids", []):
            *before, last = word
            is_end = not before and last in self.stop  # a text must be able to end
            if row[len(row) - len(before) :] == before and not is_end:
                ids.append(last)
        if length < rules.get("min_length", 0) or step < rules.get("min_new_tokens", 0):
            ids += self.stop
        return ids

    def forced(self, length: int, step: int) -> int | None:
        if step == self.max_new_tokens - 1 and "forced_eos_token_id" in self.rules:
            return self.rules["forced_eos_token_id"]
        return self.rules.get("forced_bos_token_id") if length == 1 else None

    def suppressed(self, prompt_length: int, step: int) -> list[int]:
        ids = list(self.rules.get("suppress_tokens", []))
        # the first token that is free
        begin = int(prompt_length == 1 and "forced_bos_token_id" in self.rules)
        if step == begin:
            ids += self.rules.get("begin_suppress_tokens", [])
        return ids


def forbid(logits_V: Tensor, ids: list[int]) -> Tensor:
    """A rule may name ids that the model does not have."""
    known = [i for i in ids if i < len(logits_V)]
    logits_V = logits_V.clone()
    logits_V[known] = -math.inf
    return logits_V


def repeats(row: list[int], size: int) -> list[int]:
    """The ids that would complete an n-gram which the row has already."""
    begin = row[len(row) - size + 1 :]
    ids = []
    for start in range(len(row) - size + 1):
        *before, last = row[start : start + size]
        if before == begin:
            ids.append(last)
    return ids
