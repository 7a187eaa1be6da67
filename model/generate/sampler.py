"""Sampler: a run that is ready to generate text, for sample.py and for programs of your own."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from configs.registry import Count, Natural, build
from data.objectives import OBJECTIVES, Objective
from data.tokenizers.tokenizer import Tokenizer
from model.checkpoint import LoadedRun
from model.generate.decode import decode
from model.generate.prompt import encode_prompt
from model.generate.sampling import Sampling
from model.generate.stream import TextStream


@dataclass
class Row:
    """A prompt, and the text that is generated for it; for none without ids."""

    prompt: Any  # text, or messages
    ids: list[int]  # of the prompt in its template
    stream: TextStream
    sample_id: int = 0
    shown: str = ""  # what is printed of it

    def fields(self) -> dict[str, Any]:
        names = ("text", "ids", "logprobs", "finish_reason")
        return {"prompt": self.prompt} | {name: getattr(self.stream, name) for name in names}


@dataclass(frozen=True)
class Generation(Sampling):
    max_new_tokens: Count = 200
    beams: Natural = 0  # 0 samples
    length_penalty: float = 1.0


class Sampler:
    def __init__(self, run: LoadedRun) -> None:
        self.run = run
        self.model: Any = run.model
        self.tokenizer = run.tokenizer
        # that of an imported run is not known
        self.objective: Any = OBJECTIVES.get(run.config["objective"]["kind"], Objective)
        if self.objective.generate:
            shared = run.config["model"] | {"architecture": run.model.kind, "document_mask": False}
            self.objective = build("objective", OBJECTIVES, run.config["objective"], shared)

        self.search = choose_search(run.model, self.objective, run.tokenizer)
        self.kind = str(self.model.kind)
        if self.kind == "encoder" and self.search.func is not decode:
            self.kind = "decoder"
        # a decoder continues a text, unless it was trained on pairs: then it generates a target
        self.continues = self.kind == "decoder" and self.objective.input_kind != "pairs"
        self.usual = Generation(temperature=0.8 if self.continues else 0.0)

    def encode(self, text: str, slide: bool = False, special: bool = False) -> list[int]:
        """The ids of a prompt. slide: the end of one that is too long. special: special tokens that
        are written in it are parsed."""
        before, after = self.tokenizer.template
        if self.continues:
            after = []  # it would end the text
        elif self.kind == "decoder":
            after = [self.tokenizer.start]  # of a target
        context = self.model.context_length
        around = self.objective.prompt
        ids = encode_prompt(text, self.tokenizer, context, slide, [before, after], around, special)
        if not ids and self.continues:
            return before or [self.tokenizer.specials["end"]]
        return ids

    def generate(self, rows: list[Row], how: Generation) -> Iterator[tuple[Row, str]]:
        """Complete each row. Yields its text as it grows."""
        prompts = [row.ids for row in rows]
        inputs: dict[str, Any] = {"stop": self.tokenizer.end_ids}
        if self.model.kind == "encoder_decoder":
            inputs["sources"] = prompts
            prompts = [[self.tokenizer.start]] * len(rows)
        inputs |= self.restrict(prompts, how)

        inputs["max_new_tokens"] = how.max_new_tokens
        if how.beams:
            from model.generate.beams import beam_search

            inputs |= {"beams": how.beams, "length_penalty": how.length_penalty}
            steps: Any = beam_search(self.model, prompts, **inputs)
        else:
            row_ids = [row.sample_id for row in rows]
            steps = self.search(prompts, sampling=how, row_ids=row_ids, **inputs)

        for step in steps:
            for row, i, logprob in zip(rows, step.ids, step.logprobs, strict=True):
                yield row, row.stream.push(i, logprob)
            if all(row.stream.finish_reason for row in rows):
                break
        for row in rows:
            yield row, row.stream.finish("length")

    def restrict(self, prompts: list[list[int]], how: Generation) -> dict[str, Any]:
        """Further options of decoding, for those of an imported model."""
        return {}


def choose_search(model: Any, objective: Any, tokenizer: Tokenizer) -> Any:
    """decode(), or the generate() of an objective or an architecture of your own."""
    if objective.generate:
        return partial(objective.generate, model, tokenizer=tokenizer)
    if model.generate:
        return partial(model.generate, tokenizer=tokenizer)
    return partial(decode, model)
