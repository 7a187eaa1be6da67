"""Decode: the prompts are prefilled at once, then each step is one token per row through the KV cache."""

from typing import Annotated, NamedTuple

import torch

from configs.registry import Bounds, check_value, matches
from model.generate.sampling import GREEDY, at_least_float32, sample_next, uniform

MaxNewTokens = Annotated[int, Bounds(least=1, most=1_000_000)]
NOT_FINITE = "logits are NaN or infinite; the checkpoint is unusable"


def left_pad(rows, model):
    """(tokens, visible); visible is None where nothing is padded."""
    longest, device = max(map(len, rows)), model.embedding.table.weight.device
    tokens = torch.tensor([[0] * (longest - len(row)) + row for row in rows], device=device)
    if all(len(row) == longest for row in rows):
        return tokens, None
    first = longest - torch.tensor([[len(row)] for row in rows], device=device)
    return tokens, torch.arange(longest, device=device) >= first


def check_token_rows(name, rows, model):
    """Token ids are checked where they enter, so that no forward pass needs to."""
    if not matches(rows, list[list[int]]) or not rows:
        raise ValueError(f"{name}s are {str(rows)!r:.60}; expected a list of lists of token ids")
    vocab_size = model.embedding.table.num_embeddings
    for row in rows:
        if not 1 <= len(row) <= model.context_length:
            raise ValueError(
                f"a {name} has {len(row)} tokens; the context length is {model.context_length}"
            )
        if min(row) < 0 or max(row) >= vocab_size:
            raise ValueError(
                f"a {name} has ids {min(row)} to {max(row)}; expected 0 to {vocab_size - 1}"
            )


class DecodingState:
    """A batch of rows during generation. A row longer than the context slides: it continues with its newer
    half, which alone is prefilled again. A source is encoded once."""

    def __init__(self, model, prompts, sources, max_new_tokens, stop):
        if model.training:
            raise ValueError("the model is in training mode: call model.eval() first")
        if model.kind == "encoder":
            raise ValueError("an encoder cannot generate text; it fills in masked tokens")
        check_token_rows("prompt", prompts, model)
        if sources is not None:
            check_token_rows("source", sources, model)
        n_sources, expected = (
            len(sources or []),
            len(prompts) if model.kind == "encoder_decoder" else 0,
        )
        if n_sources != expected:
            raise ValueError(f"got {n_sources} sources; this {model.kind} needs {expected}")
        self.max_new_tokens = check_value("max_new_tokens", max_new_tokens, MaxNewTokens)
        self.vocab_size = model.embedding.table.num_embeddings
        token_id = Annotated[int, Bounds(0, self.vocab_size - 1)]
        stop = check_value("stop", stop, token_id | list[token_id] | None)
        self.stop = [stop] if isinstance(stop, int) else stop or []
        self.model, self.rows, self.caches = model, [list(row) for row in prompts], None
        self.memory, self.memory_visible = None, None
        if sources is not None:
            tokens, self.memory_visible = left_pad(sources, model)
            self.memory = model.encode(tokens, visible=self.memory_visible)

    def forward(self, tokens, rows=slice(None), **options):
        if self.memory is None:
            return self.model.hidden(tokens, **options)
        visible = None if self.memory_visible is None else self.memory_visible[rows]
        return self.model.decode(tokens, self.memory[rows], memory_visible=visible, **options)

    def next_logits(self):
        """The logits of the next token of each row."""
        if self.caches is None:
            self.tokens, self.visible = left_pad(self.rows, self.model)
            longest = max(map(len, self.rows)) + self.max_new_tokens
            self.caches = self.model.new_caches(min(self.model.context_length, longest))
        hidden = self.forward(self.tokens, visible=self.visible, caches=self.caches)
        return self.model.head(hidden[:, -1])

    def append(self, ids):
        """One new id for each row."""
        self.tokens = torch.tensor(ids)[:, None].to(self.tokens.device, non_blocking=True)
        for row, i in zip(self.rows, ids, strict=True):
            row.append(i)
        if self.visible is not None:
            self.visible = torch.cat([self.visible, torch.ones_like(self.visible[:, :1])], 1)
        if full := [
            number for number, row in enumerate(self.rows) if len(row) > self.model.context_length
        ]:
            self.slide(full)

    def slide(self, full):
        """These rows continue with their newer half. All of it but the newest id is prefilled into their last
        slots; the other rows stay as they are."""
        half = self.model.context_length // 2 or 1
        for number in full:
            self.rows[number] = self.rows[number][-half:]
        if len(full) == len(self.rows):
            self.caches = None
            return
        slots = max(map(len, self.rows)) - 1
        for layer in self.caches:
            layer.self_attn.keep_last(slots)
        self.visible = self.visible[:, -slots - 1 :]
        self.visible[full, : slots + 1 - half] = False
        if half > 1:
            prefilled, rows = (
                self.model.new_caches(half - 1),
                [self.rows[number][:-1] for number in full],
            )
            self.forward(torch.tensor(rows, device=self.tokens.device), full, caches=prefilled)
            for layer, new in zip(self.caches, prefilled, strict=True):
                layer.self_attn.overwrite_rows(full, new.self_attn)

    def select_rows(self, numbers):
        """Continue with these rows, some perhaps repeated; for a batch without padding."""
        self.rows = [list(self.rows[number]) for number in numbers]
        self.memory = None if self.memory is None else self.memory[numbers]
        for layer in self.caches:
            layer.self_attn.select_rows(numbers)
            layer.cross_attn.select_rows(numbers)


class DecodeStep(NamedTuple):
    ids: list  # one for each row, None where the row has ended
    logits_BV: torch.Tensor

    def logprobs(self):
        """The model's own log-probability of each id, before temperature, penalty and filters."""
        logprobs_BV = at_least_float32(self.logits_BV).log_softmax(-1)
        ids_B1 = torch.tensor([[i or 0] for i in self.ids], device=logprobs_BV.device)
        chosen = logprobs_BV.gather(1, ids_B1)[:, 0].tolist()
        return [None if i is None else p for i, p in zip(self.ids, chosen, strict=True)]


def decode(
    model, prompts, *, max_new_tokens, sampling=GREEDY, sources=None, stop=None, row_ids=None
):
    """Continue each prompt, a list of token ids, until the id `stop`, or one of several: yields a DecodeStep
    per step. Samples follow from the seed, the step and the row id (by default its index), so no row depends
    on the others. The prompts of an encoder-decoder begin the targets, usually with a start token."""
    row_ids = range(len(prompts)) if row_ids is None else row_ids
    with torch.inference_mode():
        state = DecodingState(model, prompts, sources, max_new_tokens, stop)
    if len(row_ids) != len(prompts):
        raise ValueError(f"got {len(row_ids)} row ids and {len(prompts)} prompts; expected as many")
    if sampling.top_k is not None and sampling.top_k > state.vocab_size:
        raise ValueError(f"top_k is {sampling.top_k}; the vocabulary size is {state.vocab_size}")
    seen_BV, ended = None, [False] * len(prompts)
    for step in range(state.max_new_tokens):
        with torch.inference_mode():
            logits_BV = state.next_logits()
            if step == 0 and sampling.repetition_penalty != 1:
                seen_BV = torch.zeros_like(logits_BV, dtype=torch.bool)
                for row, seen_V in zip(state.rows, seen_BV, strict=True):
                    seen_V[row] = True
            uniforms = (
                [uniform(sampling.seed, n, step) for n in row_ids] if sampling.temperature else None
            )
            new_ids = sample_next(logits_BV, seen_BV, uniforms, sampling)
            # the check travels with the ids, the only wait for a GPU in a step; amax propagates NaN
            ids = torch.where(logits_BV.amax(-1).isfinite(), new_ids, -1).tolist()
            if -1 in ids:
                raise FloatingPointError(NOT_FINITE)
            if seen_BV is not None:
                seen_BV.scatter_(1, new_ids[:, None], True)
            state.append(ids)
        ids = [None if done else i for done, i in zip(ended, ids, strict=True)]
        yield DecodeStep(ids, logits_BV)
        ended = [i in (None, *state.stop) for i in ids]
        if all(ended):
            return


def generate(model, prompts, **options):
    """The ids of decode(), with the same options: an iterator over steps, a list of one id per row each."""
    return (step.ids for step in decode(model, prompts, **options))
