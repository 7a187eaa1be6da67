"""Decode: the prompts are read at once, then each step adds one token per row through the KV
cache."""

import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from configs.registry import Count, check_value
from model.cuda import HostCopy, can_replay, record
from model.generate.sampling import GREEDY, Sampling, sample_next, uniform

NOT_FINITE = "logits are NaN or infinite; the checkpoint is unusable"
DELAY = 2  # steps that a GPU is ahead of the host

Rows = list[list[int]]  # of token ids


def left_pad(rows: Rows, model: Any, size: int = 0) -> tuple[Tensor, Tensor | None]:
    """(tokens, visible); visible has at least `size` columns, and is None where nothing is padded.
    Token ids are checked here, where they enter, so that no forward pass needs to."""
    table = model.embedding.table
    longest = max(map(len, rows))
    padded = []
    for row in rows:
        if not 1 <= len(row) <= model.context_length:
            limit = f"the context length is {model.context_length}"
            raise ValueError(f"a prompt has {len(row)} tokens; {limit}")
        if min(row) < 0 or max(row) >= table.num_embeddings:
            ids = f"{min(row)} to {max(row)}"
            raise ValueError(f"token ids are {ids}; expected 0 to {table.num_embeddings - 1}")
        # no mask shows it, but a repetition penalty sees it: a token that the row has anyway
        padding = row[:1] * (longest - len(row))
        padded.append(padding + row)

    tokens = torch.tensor(padded, device=table.weight.device)
    if min(map(len, rows)) == longest:
        return tokens, None
    return tokens, visible_slots(rows, max(size, longest), tokens.device)


def visible_slots(rows: Rows, size: int, device: torch.device) -> Tensor:
    """(B, size): false at the padding of each row, true at its tokens and those to come."""
    longest = max(map(len, rows))
    starts = [longest - len(row) for row in rows]
    starts_B1 = torch.tensor(starts, device=device)[:, None]
    return torch.arange(size, device=device) >= starts_B1


class DecodingState:
    """A batch of rows during generation. A row longer than the context slides: it continues with
    its newer half, which alone is read again. A source is encoded once."""

    memory: Any = None  # of the sources
    slot: Tensor | None = None  # of the next token, once the caches are fixed; they share it

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
        longest = self.longest() + max_new_tokens
        # masks of other lengths than multiples of 8 are copied in each layer
        rounded = longest + -longest % 8
        self.size = min(model.context_length, rounded)
        self.caches = model.new_caches(self.size)
        self.tokens, self.visible = left_pad(prompts, model, self.size)
        if sources:
            tokens, self.memory_visible = left_pad(sources, model)
            self.memory = model.encode(tokens, visible=self.memory_visible)

    def longest(self) -> int:
        return max(map(len, self.rows))

    def visible_slots(self) -> Tensor:
        return visible_slots(self.rows, self.size, self.tokens.device)

    def hidden(self, tokens: Tensor, rows: Any = slice(None), **options: Any) -> Tensor:
        if self.memory is None:
            return self.model.hidden(tokens, **options)
        if self.memory_visible is not None:
            options["memory_visible"] = self.memory_visible[rows]
        return self.model.decode(tokens, self.memory[rows], **options)

    def next_logits(self) -> Tensor:
        """Of each row; in float32 at least, which sums over a vocabulary need."""
        visible = self.visible
        if visible is not None and self.slot is None:
            visible = visible[:, : self.longest()]
        hidden = self.hidden(self.tokens, visible=visible, caches=self.caches)
        if self.slot is not None:
            self.slot += 1
        logits_BV = self.model.head(hidden[:, -1])
        return logits_BV.to(torch.promote_types(logits_BV.dtype, torch.float32))

    def fix_shapes(self) -> None:
        """All shapes and places stay the same from now on, as a CUDA graph needs."""
        n_stored = self.caches[0].self_attn.length
        self.slot = torch.tensor([n_stored], device=self.tokens.device)
        self.visible = self.visible_slots()
        for layer in self.caches:
            layer.self_attn.slot = self.slot

    def is_full(self, n_new: int = 0) -> bool:
        """Whether a row with this many more tokens exceeds the context."""
        return self.longest() + n_new > self.model.context_length

    def append(self, ids: list[int]) -> None:
        """One new id for each row."""
        for row, i in zip(self.rows, ids, strict=True):
            row.append(i)
        if self.is_full():
            self.slide()

    def slide(self) -> None:
        """Rows longer than the context continue with their newer half, which is read again, into
        their last slots; the other rows stay as they are."""
        context = self.model.context_length
        half = context // 2 or 1
        # the newest id of each row is in no cache: the next step reads it
        n_stored = self.longest() - 1

        full = [number for number, row in enumerate(self.rows) if len(row) > context]
        for number in full:
            del self.rows[number][:-half]
        n_kept = self.longest() - 1
        for layer in self.caches:
            layer.self_attn.keep(n_stored - n_kept, n_stored)
        if self.visible is not None:
            self.visible.copy_(self.visible_slots())
        if self.slot is not None:
            self.slot.fill_(n_kept)

        if half == 1:
            return
        unread = [self.rows[number][:-1] for number in full]
        caches = self.model.new_caches(half - 1)
        self.hidden(self.tokens.new_tensor(unread), full, caches=caches)
        for layer, new in zip(self.caches, caches, strict=True):
            layer.self_attn.overwrite_rows(full, new.self_attn)

    def branch(self, numbers: list[int], ids: list[int]) -> None:
        """Continue these targets of one source, some perhaps repeated, with an id for each."""
        self.rows = [list(self.rows[number]) for number in numbers]
        self.memory = self.memory[numbers]
        for layer in self.caches:
            layer.self_attn.select_rows(numbers)
            layer.cross_attn.select_rows(numbers)
        self.tokens = self.tokens.new_tensor(ids)[:, None]
        self.append(ids)


class Chooser:
    """Reads the newest tokens of a state and chooses the next, without leaving the device. Its
    tensors stay where they are, as a CUDA graph needs."""

    def __init__(self, state: DecodingState, sampling: Sampling, row_ids: Sequence[int]) -> None:
        self.state = state
        self.sampling = sampling
        self.row_ids = row_ids
        self.new_B1 = torch.empty_like(state.tokens[:, :1])
        batch_size = len(state.rows)

        self.seen_BV: Tensor | None = None
        if sampling.repetition_penalty != 1:
            vocab_size = state.model.embedding.table.num_embeddings
            self.seen_BV = self.new_B1.new_zeros(batch_size, vocab_size).bool()
            self.seen_BV.scatter_(1, state.tokens, True)

        self.uniforms_B = torch.zeros(batch_size, dtype=torch.float64)
        if self.new_B1.is_cuda:  # mps has no float64
            self.uniforms_B = self.uniforms_B.cuda()

    def draw(self, step: int) -> None:
        if self.sampling.temperature > 0:
            numbers = [uniform(self.sampling.seed, n, step) for n in self.row_ids]
            is_cuda = self.uniforms_B.is_cuda
            drawn_B = torch.tensor(numbers, dtype=torch.float64, pin_memory=is_cuda)
            self.uniforms_B.copy_(drawn_B, non_blocking=True)

    def choose(self) -> Tensor:
        """(2, B): the ids and their log-probabilities, which one copy then brings to the host."""
        logits_BV = self.state.next_logits()
        new_B = sample_next(logits_BV, self.seen_BV, self.uniforms_B, self.sampling)
        self.new_B1.copy_(new_B[:, None])
        self.state.tokens = self.new_B1
        if self.seen_BV is not None:
            self.seen_BV.scatter_(1, self.new_B1, True)

        logprobs_BV = logits_BV.log_softmax(-1)
        logprobs_B = logprobs_BV.gather(1, self.new_B1)[:, 0]
        numbers_B = new_B.to(logprobs_B.dtype)  # exact below 2^24
        return torch.stack([numbers_B, logprobs_B])

    def steps(self, count: int) -> Iterator[list[list[float]]]:
        """(ids, log-probabilities) of one step after the other. The ids of each are appended to the
        state before the next is asked for."""
        choose: Callable[[], Tensor] = self.choose
        is_replayed = can_replay(self.state.model)
        copies: deque[HostCopy] = deque()
        for step in range(count):
            # after the prompts, all steps are alike: one warms up, and a graph is made of the next
            if is_replayed and step == 1:
                self.state.fix_shapes()
            if is_replayed and step == 2:
                choose = record(self.choose)
            self.draw(step)
            copies.append(HostCopy(choose()))

            # the host reads the ids of a step while a GPU computes the next ones; it must have read
            # all where a row may have to slide, for that needs its newest ids
            is_last = step + 1 == count
            must_wait = not is_replayed or is_last or self.state.is_full(len(copies))
            delay = 0 if must_wait else DELAY
            while len(copies) > delay:
                yield copies.popleft().read()


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
    chooser = Chooser(state, sampling, row_ids)
    ended = [False] * len(prompts)

    for numbers, logprobs in chooser.steps(max_new_tokens):
        if any(map(math.isnan, logprobs)):
            raise FloatingPointError(NOT_FINITE)
        ids = list(map(int, numbers))
        state.append(ids)

        new = [None if done else i for done, i in zip(ended, ids, strict=True)]
        yield DecodeStep(new, logprobs)
        ended = [i is None or i in stop for i in new]
        if all(ended):
            return


def generate(model: nn.Module, prompts: Rows, **options: Any) -> Iterator[list[int | None]]:
    """The ids of decode(), with the same options: a list with one id per row for each step."""
    return (step.ids for step in decode(model, prompts, **options))
