"""Decode: the prompts are read at once, then each step adds one token per row through the KV
cache."""

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from configs.registry import Count, check_value
from model.generate.sampling import GREEDY, Sampling, at_least_float32, sample_next, uniform

NOT_FINITE = "logits are NaN or infinite; the checkpoint is unusable"

Rows = list[list[int]]  # of token ids


def left_pad(rows: Rows, model: Any) -> tuple[Tensor, Tensor | None]:
    """(tokens, visible); visible is None where nothing is padded. Token ids are checked here, where
    they enter, so that no forward pass needs to."""
    table = model.embedding.table
    for row in rows:
        if not 1 <= len(row) <= model.context_length:
            limit = f"the context length is {model.context_length}"
            raise ValueError(f"a prompt has {len(row)} tokens; {limit}")
        if min(row) < 0 or max(row) >= table.num_embeddings:
            ids = f"{min(row)} to {max(row)}"
            raise ValueError(f"token ids are {ids}; expected 0 to {table.num_embeddings - 1}")

    longest = max(map(len, rows))
    padded = [[-1] * (longest - len(row)) + row for row in rows]
    tokens = torch.tensor(padded, device=table.weight.device)
    if min(map(len, rows)) == longest:
        return tokens, None
    return tokens.clamp(min=0), tokens >= 0


class DecodingState:
    """A batch of rows during generation. A row longer than the context slides: it continues with
    its newer half, which alone is read again. A source is encoded once."""

    visible: Tensor | None
    memory: Tensor | None = None

    def __init__(
        self, model: Any, prompts: Rows, sources: Rows | None, max_new_tokens: int
    ) -> None:
        if model.training:
            raise ValueError("the model is in training mode: call model.eval() first")
        if model.kind == "encoder":
            raise ValueError("an encoder cannot generate text; it fills in masked tokens")
        expected = len(prompts) if model.kind == "encoder_decoder" else 0
        if len(sources or []) != expected:
            raise ValueError(f"a {model.kind} needs {expected} sources for these prompts")
        check_value("max_new_tokens", max_new_tokens, Count)

        self.model = model
        self.rows = [list(row) for row in prompts]
        longest = max(map(len, prompts)) + max_new_tokens
        self.size = min(model.context_length, longest)
        self.prefill()

        if sources:
            tokens, self.memory_visible = left_pad(sources, model)
            self.memory = model.encode(tokens, visible=self.memory_visible)

    def prefill(self) -> None:
        self.tokens, self.visible = left_pad(self.rows, self.model)
        self.caches = self.model.new_caches(self.size)

    def hidden(self, tokens: Tensor, rows: Any = slice(None), **options: Any) -> Tensor:
        if self.memory is None:
            return self.model.hidden(tokens, **options)
        if self.memory_visible is not None:
            options["memory_visible"] = self.memory_visible[rows]
        return self.model.decode(tokens, self.memory[rows], **options)

    def next_logits(self) -> Tensor:
        """The logits of the next token of each row."""
        hidden = self.hidden(self.tokens, visible=self.visible, caches=self.caches)
        return self.model.head(hidden[:, -1])

    def append(self, ids: list[int]) -> None:
        """One new id for each row."""
        full = []
        for number, row in enumerate(self.rows):
            row.append(ids[number])
            if len(row) > self.model.context_length:
                full.append(number)

        new_B1 = torch.tensor(ids)[:, None]
        self.tokens = new_B1.to(self.tokens.device, non_blocking=True)

        if self.visible is not None:
            is_new_B1 = torch.ones_like(self.visible[:, :1])
            self.visible = torch.cat([self.visible, is_new_B1], 1)

        if full:
            self.slide(full)

    def slide(self, full: list[int]) -> None:
        """These rows continue with their newer half. All of it but the newest id is read again,
        into their last slots; the other rows stay as they are."""
        half = self.model.context_length // 2 or 1
        for number in full:
            self.rows[number] = self.rows[number][-half:]

        if self.visible is None:  # then all rows are full
            return self.prefill()

        slots = max(map(len, self.rows)) - 1
        self.visible = self.visible[:, -slots - 1 :]
        self.visible[full, : slots + 1 - half] = False
        for layer in self.caches:
            layer.self_attn.keep_last(slots)

        if half > 1:
            newer = [self.rows[number][:-1] for number in full]
            tokens, _ = left_pad(newer, self.model)
            caches = self.model.new_caches(half - 1)
            self.hidden(tokens, full, caches=caches)
            for layer, new in zip(self.caches, caches, strict=True):
                layer.self_attn.overwrite_rows(full, new.self_attn)

    def select_rows(self, numbers: list[int]) -> None:
        """Continue with these rows, some perhaps repeated; for a batch without padding."""
        self.rows = [list(self.rows[number]) for number in numbers]
        self.memory = None if self.memory is None else self.memory[numbers]
        for layer in self.caches:
            layer.self_attn.select_rows(numbers)
            layer.cross_attn.select_rows(numbers)


class DecodeStep(NamedTuple):
    ids: list[int | None]  # one for each row, None where the row has ended
    logprobs: list[float]  # the model's own, before temperature, penalty and filters


@torch.inference_mode()
def decode(
    model: nn.Module,
    prompts: Rows,
    *,
    max_new_tokens: int,
    sampling: Sampling = GREEDY,
    sources: Rows | None = None,
    stop: Sequence[int] = (),
    row_ids: Sequence[int] | None = None,
) -> Iterator[DecodeStep]:
    """Continue each prompt until one of the ids in `stop`: yields a DecodeStep per step.

    Samples follow from the seed, the step and the row id (by default its index), so no row depends
    on the others. The prompts of an encoder-decoder begin the targets, usually with a start token.
    """
    state = DecodingState(model, prompts, sources, max_new_tokens)
    row_ids = range(len(prompts)) if row_ids is None else row_ids

    ended = [False] * len(prompts)
    seen_BV = None

    for step in range(max_new_tokens):
        logits_BV = state.next_logits()
        if step == 0 and sampling.repetition_penalty != 1:
            seen_BV = torch.zeros_like(logits_BV, dtype=torch.bool)
            for row, seen_V in zip(prompts, seen_BV, strict=True):
                seen_V[row] = True

        uniforms = []
        if sampling.temperature > 0:
            uniforms = [uniform(sampling.seed, n, step) for n in row_ids]
        new_B1 = sample_next(logits_BV, seen_BV, uniforms, sampling)[:, None]
        if seen_BV is not None:
            seen_BV.scatter_(1, new_B1, True)

        logprobs_BV = at_least_float32(logits_BV).log_softmax(-1)
        logprobs = logprobs_BV.gather(1, new_B1)[:, 0].tolist()
        if any(map(math.isnan, logprobs)):
            raise FloatingPointError(NOT_FINITE)

        ids = new_B1[:, 0].tolist()
        state.append(ids)

        new = [None if done else i for done, i in zip(ended, ids, strict=True)]
        yield DecodeStep(new, logprobs)
        ended = [i is None or i in stop for i in new]
        if all(ended):
            return


def generate(model: nn.Module, prompts: Rows, **options: Any) -> Iterator[list[int | None]]:
    """The ids of decode(), with the same options: a list with one id per row for each step."""
    return (step.ids for step in decode(model, prompts, **options))
