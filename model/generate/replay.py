"""Replay: on a GPU, a token is one CUDA graph, and the host is some steps behind."""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from model.cache import Slots
from model.cuda import has_grouped_mm, is_sharded
from model.generate.padding import visible_slots
from model.generate.sampling import Sampling, sample_next, uniform

DELAY = 2  # steps that a GPU is ahead of the host


def can_replay(model: nn.Module) -> bool:
    """Whether decoding can replay a CUDA graph. It belongs to one GPU and reads weights at fixed
    addresses: no weight may be sharded, and experts must not wait for the host."""
    return all(
        p.is_cuda
        and p.get_device() == torch.cuda.current_device()
        and not is_sharded(p)
        and (p.ndim < 3 or has_grouped_mm(p))
        for p in model.parameters()
    )


class FixedSlots(Slots):
    """Slots of which a pass reads all and fills one, so that all shapes and addresses stay the
    same. `new` is a tensor (1,)."""

    def __init__(self, slots: Slots, device: torch.device):
        super().__init__(slots.size)
        self.new = torch.tensor([slots.length - 1], device=device)

    def reserve(self, x: Tensor) -> tuple[Tensor, Tensor]:
        self.new += 1
        return self.new, torch.arange(self.size, device=x.device)

    def seen(self, window: int | None) -> slice:
        return slice(0, self.size)

    def move(self, length: int) -> None:
        self.length = length
        self.new.fill_(length - 1)


def record(step: Callable[[], Tensor]) -> Callable[[], Tensor]:
    """Record a step whose tensors keep their shapes and addresses, as one launch instead of
    hundreds. Recording computes nothing. The step must have run once, because libraries allocate
    memory at first. The next call overwrites its output."""
    graph = torch.cuda.CUDAGraph()

    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        output = step()

    def replay() -> Tensor:
        graph.replay()
        return output

    return replay


def replayed(
    state: Any, sampling: Sampling, row_ids: Sequence[int], count: int, stop: Sequence[int]
) -> Iterator:
    """The steps of decode(). After the prompts, all of them are alike: one warms up, and the next
    one is recorded."""
    tokens = state.prompts_BT
    device = tokens.device
    seen_BV = state.new_seen() if sampling.repetition_penalty != 1 else None

    uniforms_B = torch.zeros(len(row_ids), dtype=torch.float64, device=device)
    new_B1 = torch.empty_like(tokens[:, :1])  # the same memory at each step

    def choose() -> Tensor:
        """The ids and their log-probabilities, (2, B), so that one copy brings both to the host."""
        logits_BV = state.next_logits(tokens)
        logprobs_BV = logits_BV.log_softmax(-1)
        if seen_BV is not None:
            seen_BV.scatter_(1, tokens, True)

        new_B = sample_next(logits_BV, seen_BV, uniforms_B, sampling)
        new_B1.copy_(new_B[:, None])
        logprobs_B = logprobs_BV.gather(1, new_B1)[:, 0]
        ids_B = new_B.to(logprobs_B.dtype)  # exact below 2^24
        return torch.stack([ids_B, logprobs_B])

    run = choose
    copies: deque[tuple[Tensor, Any]] = deque()  # to the host, and the end of each copy

    for step in range(count):
        if step == 1:  # from now on, all shapes and addresses stay the same
            tokens = new_B1
            state.visible = visible_slots(state.rows, state.size, device)
            slots = FixedSlots(state.caches.slots, device)
            for owner in (state.caches, *state.caches.states):
                owner.slots = slots

        if step == 2:
            run = record(choose)

        if sampling.temperature > 0:
            numbers = [uniform(sampling.seed, n, step) for n in row_ids]
            drawn_B = torch.tensor(numbers, dtype=torch.float64, pin_memory=tokens.is_cuda)
            uniforms_B.copy_(drawn_B, non_blocking=True)

        copy = run().to("cpu", non_blocking=True, copy=True)
        copies.append((copy, torch.cuda.current_stream().record_event()))

        # the host reads the ids of a step while the GPU computes the next ones; it must have read
        # all if a row may outgrow the context, because that needs its newest ids
        may_outgrow = max(map(len, state.rows)) + len(copies) > state.model.context_length
        must_wait = may_outgrow or step + 1 == count

        while copies and (must_wait or len(copies) > DELAY):
            copy, event = copies.popleft()
            event.synchronize()
            ids, logprobs = copy.tolist()
            yield state.advance(list(map(int, ids)), logprobs, stop)

            if all(state.ended):
                return
