"""A model of transformers generates as there: by the rules of its generation_config.json."""

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, replace
from itertools import cycle
from typing import Any

import torch
from torch import Tensor

from configs.errors import CheckpointError
from model.checkpoint import LoadedRun
from model.generate.decode import Rows
from model.generate.sampler import Generation, Sampler

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


class ImportedSampler(Sampler):
    def __init__(self, run: LoadedRun) -> None:
        super().__init__(run)
        text = self.tokenizer.files.get("generation_config.json", "{}")
        self.rules: dict[str, Any] = json.loads(text)
        length = self.rules.get("max_new_tokens")
        if self.kind == "encoder_decoder" and self.rules.get("max_length"):
            length = length or self.rules["max_length"] - 1  # it counts the start token
        self.usual = replace(
            self.usual,
            repetition_penalty=self.rules.get("repetition_penalty") or 1.0,
            max_new_tokens=length or self.usual.max_new_tokens,
        )

    def restrict(self, prompts: Rows, how: Generation) -> dict[str, Any]:
        rules = self.rules
        if not how.beams:  # else the penalty is one of sampling
            rules = rules | {"repetition_penalty": None}
        processor = LogitsProcessor(rules, prompts, how.max_new_tokens, self.tokenizer.end_ids)
        return {} if processor.rules == NO_RULES else {"processor": processor}


class LogitsProcessor:
    """Forbids tokens, whose logits become -inf, or forces one. `rules` have the names of
    transformers."""

    def __init__(
        self,
        rules: dict[str, Any],
        prompts: Rows,
        max_new_tokens: int,
        stop: Sequence[int],
    ) -> None:
        given = {name: rules[name] for name in NO_RULES if rules.get(name) is not None}
        self.rules = NO_RULES | given
        self.prompts = prompts
        self.last = max_new_tokens - 1
        self.stop = stop

    def __call__(self, rows: Rows, step: int, logits_BV: Tensor) -> Tensor:
        """The logits of each row, `step` tokens after its prompt. All beams have one prompt."""
        rules = self.rules
        logits_BV = logits_BV.clone()
        for row, prompt, logits_V in zip(rows, cycle(self.prompts), logits_BV, strict=False):
            seen = logits_V[row]
            penalty = rules["repetition_penalty"]
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


def load_folder(place: str, which: str | None) -> LoadedRun:
    """A Hugging Face folder as a run. Nothing is written."""
    from model.hub.convert import load_hf

    if which not in (None, "latest"):
        raise CheckpointError(f"{place} is a Hugging Face folder: it has no checkpoint {which!r}")
    model, tokenizer, config = load_hf(place)
    settings = {"model": asdict(config), "objective": {"kind": "auto"}}
    return LoadedRun(model.eval(), tokenizer, settings, 0)
