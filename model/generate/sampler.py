"""Sampler: a run that is ready to generate text, for sample.py and for programs of your own."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from configs.registry import build
from data.objectives import OBJECTIVES, Objective
from data.tokenizers.tokenizer import Tokenizer
from model.checkpoint import LoadedRun
from model.generate.decode import DecodeStep, decode
from model.generate.prompt import encode_prompt
from model.generate.sampling import Sampling
from model.generate.stream import TextStream

MAX_NEW_TOKENS = 200
# special tokens that an imported model begins or ends a target with
FORCED = {"forced_start": "forced_bos_token_id", "forced_end": "forced_eos_token_id"}


@dataclass
class Row:
    """A prompt, and the text that is generated for it. Without ids, it has none."""

    prompt: Any  # text, or messages
    ids: list[int]  # of the prompt in its template
    stream: TextStream
    sample_id: int = 0
    shown: str = ""  # what has been printed of it


@dataclass(frozen=True)
class Generation:
    """How to generate: what is None is as the model does by default."""

    sampling: Sampling | None = None
    max_new_tokens: int | None = None
    beams: int | None = None
    length_penalty: float = 1.0


Search = Callable[..., Iterator[DecodeStep]]


def choose_search(model: Any, objective: Any, tokenizer: Tokenizer) -> Search:
    """decode(), or the generate() of an objective or an architecture of your own."""
    if objective.generate:
        return partial(objective.generate, model, tokenizer=tokenizer)
    if model.generate:
        return partial(model.generate, tokenizer=tokenizer)
    return partial(decode, model)


def build_objective(run: LoadedRun) -> Objective:
    shared = run.config["model"] | {"architecture": run.model.kind, "document_mask": False}
    return build("objective", OBJECTIVES, run.config["objective"], shared)


class Sampler:
    def __init__(self, run: LoadedRun) -> None:
        self.run = run
        self.model: Any = run.model
        self.tokenizer = run.tokenizer
        # that of an imported run is not known
        kind = OBJECTIVES.get(run.config["objective"]["kind"], Objective)
        self.objective = build_objective(run) if kind.generate else kind
        self.has_own_search = bool(self.objective.generate or self.model.generate)
        self.search = choose_search(self.model, self.objective, self.tokenizer)
        self.kind = str(self.model.kind)
        if self.kind == "encoder" and self.has_own_search:
            self.kind = "decoder"
        # a decoder continues a text, unless it was trained on pairs: then it generates a target
        self.continues = self.kind == "decoder" and self.objective.input_kind != "pairs"
        self.temperature = 0.8 if self.continues else 0.0

        # of an imported model, by the names of transformers
        self.rules: dict[str, Any] = dict(run.config.get("generation") or {})
        for special, name in FORCED.items():
            if special in self.tokenizer.specials:
                self.rules[name] = self.tokenizer.specials[special]

    def row(
        self,
        prompt: Any,
        sample_id: int = 0,
        *,
        stop: Sequence[str] = (),
        special: bool = False,
        slide: bool = False,
    ) -> Row:
        """special: special tokens that are written in the prompt are parsed. slide: of a prompt
        that is too long, its end is read."""
        ids = self.encode(prompt, special, slide)
        stream = TextStream(self.tokenizer, stop, ids if self.continues else ())
        return Row(prompt, ids, stream, sample_id)

    def encode(self, prompt: Any, special: bool, slide: bool) -> list[int]:
        before, after = self.tokenizer.template
        if self.continues:
            after = []  # it would end the text
        elif self.kind == "decoder":
            after = [self.tokenizer.start]  # of a target
        ids = encode_prompt(
            prompt,
            self.tokenizer,
            self.model.context_length,
            slide,
            [before, after],
            self.objective.prompt,
            special,
        )
        if not ids and self.continues:
            return before or [self.tokenizer.specials["end"]]
        return ids

    @property
    def default_sampling(self) -> Sampling:
        penalty = self.rules.get("repetition_penalty") or 1.0
        return Sampling(self.temperature, repetition_penalty=penalty)

    @property
    def default_length(self) -> int:
        length = self.rules.get("max_new_tokens")
        if not length and self.model.kind == "encoder_decoder" and self.rules.get("max_length"):
            length = self.rules["max_length"] - 1  # it counts the start token
        return length or MAX_NEW_TOKENS

    def generate(self, rows: list[Row], how: Generation) -> Iterator[tuple[Row, str]]:
        """Complete each row. Yields its text as it grows."""
        prompts = [row.ids for row in rows]
        length = how.max_new_tokens or self.default_length
        stop = self.tokenizer.end_ids
        inputs: dict[str, Any] = {"max_new_tokens": length, "stop": stop}
        if self.model.kind == "encoder_decoder":
            inputs["sources"] = prompts
            prompts = [[self.tokenizer.start]] * len(rows)
        if self.rules:
            from model.generate.logits_processor import LogitsProcessor

            rules = self.rules if how.beams else self.rules | {"repetition_penalty": 1.0}
            processor = LogitsProcessor(rules, prompts, length, stop)
            if processor.is_active:
                inputs["processor"] = processor

        if how.beams:
            from model.generate.beams import beam_search

            inputs |= {"beams": how.beams, "length_penalty": how.length_penalty}
            steps: Any = beam_search(self.model, prompts, **inputs)
        else:
            inputs["sampling"] = how.sampling or self.default_sampling
            inputs["row_ids"] = [row.sample_id for row in rows]
            steps = self.search(prompts, **inputs)

        for step in steps:
            for row, i, logprob in zip(rows, step.ids, step.logprobs, strict=True):
                yield row, row.stream.push(i, logprob)
            if all(row.stream.finish_reason for row in rows):
                break
        for row in rows:
            yield row, row.stream.finish("length")
