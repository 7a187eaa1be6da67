"""A model of transformers generates as there: by the rules of its generation_config.json."""

import json
from dataclasses import asdict, replace
from typing import Any

from configs.errors import CheckpointError
from model.checkpoint import LoadedRun
from model.generate.decode import Rows
from model.generate.logits_processor import LogitsProcessor
from model.generate.sampler import Generation, Sampler


class ImportedSampler(Sampler):
    """The rules have the names that transformers gives them."""

    def __init__(self, run: LoadedRun) -> None:
        super().__init__(run)
        self.rules: dict[str, Any] = dict(run.config.get("generation") or {})
        penalty = self.rules.get("repetition_penalty") or 1.0
        length = self.rules.get("max_new_tokens")
        if self.kind == "encoder_decoder" and self.rules.get("max_length"):
            length = length or self.rules["max_length"] - 1  # it counts the start token
        self.usual = replace(
            self.usual,
            sampling=replace(self.usual.sampling, repetition_penalty=penalty),
            max_new_tokens=length or self.usual.max_new_tokens,
        )

    def restrict(self, prompts: Rows, how: Generation) -> dict[str, Any]:
        rules = self.rules
        if not how.beams:  # else the penalty is one of sampling
            rules = rules | {"repetition_penalty": None}
        processor = LogitsProcessor(rules, prompts, how.max_new_tokens, self.tokenizer.end_ids)
        return {"processor": processor} if processor.is_active else {}


def load_folder(place: str, which: str | None) -> LoadedRun:
    """A Hugging Face folder as a run. Nothing is written."""
    from model.hub.convert import load_hf

    if which not in (None, "latest"):
        raise CheckpointError(f"{place} is a Hugging Face folder: it has no checkpoint {which!r}")
    model, tokenizer, config = load_hf(place)
    rules = json.loads(tokenizer.files.get("generation_config.json", "{}"))
    settings = {"model": asdict(config), "objective": {"kind": "auto"}, "generation": rules}
    return LoadedRun(model.eval(), tokenizer, settings, 0)
