"""Replay: on a GPU, a token is one CUDA graph, and the host is some steps behind."""

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from model.cache import Slots
from model.cuda import has_grouped_mm, is_sharded
from model.generate.padding import visible_slots

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

    def reserve(self, n: int, device: torch.device) -> tuple[Tensor, Tensor]:
        self.new += n
        return self.new, torch.arange(self.size, device=device)

    def seen(self, window: int | None) -> slice:
        return slice(0, self.size)

    def move(self, length: int) -> None:
        self.length = length
        self.new.fill_(length - 1)


def record(step: Callable[[], Tensor]) -> Callable[[], Tensor]:
    """Record a step whose tensors keep their shapes and addresses, as one launch instead of
    hundreds. It must have run once, because libraries allocate memory at first. The next call
    overwrites its output."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        output = step()

    def replay() -> Tensor:
        graph.replay()
        return output

    return replay


def replayed_steps(chooser: Any, count: int) -> Iterator[list[list[float]]]:
    """The same as Chooser.steps. After the prompts, all steps are alike: one warms up, and the next
    one is recorded."""
    state = chooser.state
    choose: Callable[[], Tensor] = chooser.choose
    copies: deque[tuple[Tensor, Any]] = deque()  # to the host, and the end of each copy
    for step in range(count):
        if step == 1:  # from now on, all shapes and addresses stay the same
            state.visible = visible_slots(state.rows, state.size, state.prompts_BT.device)
            slots = FixedSlots(state.caches.slots, state.prompts_BT.device)
            for owner in (state.caches, *state.caches.states):
                owner.slots = slots
        if step == 2:
            choose = record(chooser.choose)

        chooser.draw(step)
        copy = choose().to("cpu", non_blocking=True, copy=True)
        copies.append((copy, torch.cuda.current_stream().record_event()))

        # the host reads the ids of a step while the GPU computes the next ones; it must have read
        # all if a row may have to slide, because that needs its newest ids
        may_slide = state.longest() + len(copies) > state.model.context_length
        must_wait = may_slide or step + 1 == count
        while copies and (must_wait or len(copies) > DELAY):
            copy, event = copies.popleft()
            event.synchronize()
            yield copy.tolist()
