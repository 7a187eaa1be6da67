"""The world of a run: its device and precision, and what its processes add up; signals. What only
several processes need is in processes.py."""

import ctypes
import os
import platform
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, NoReturn

import torch
import torch.distributed as dist
from torch import Tensor

from configs.schema import Config
from model.precision import Precision, choose_device, choose_precision, use_deterministic_algorithms
from training.processes import Meeting, choose_parallel, join, own_device


class World(NamedTuple):
    """This process, alone or among those that torchrun started: its rank, its device and precision,
    and whether it compiles."""

    rank: int
    size: int
    parallel: str  # none, ddp or fsdp
    precision: Precision
    scaler: torch.amp.GradScaler  # for float16, in which small gradients would underflow
    meeting: Meeting | None = None  # if there are several processes
    compiles: bool = False

    @property
    def device(self) -> torch.device:
        return self.precision.device

    @property
    def is_main(self) -> bool:
        return self.rank == 0  # it writes and prints

    @torch.no_grad()
    def sum(self, *numbers: float | Tensor) -> Tensor:
        """Each number summed over all processes; nothing waits for the GPU until the sums are
        read."""
        device = "cpu" if self.device.type == "mps" else self.device  # MPS has no float64
        total = torch.zeros(len(numbers), dtype=torch.float64, device=device)
        for place, number in zip(total, numbers, strict=True):
            place.fill_(number)  # on the GPU: copying a number to it would wait
        if self.size > 1:
            dist.all_reduce(total)
        return total

    def wait(self) -> None:
        """Wait for the slowest process, however long it reads its data or writes to the disk."""
        if self.meeting:
            self.meeting.wait()


def tune_malloc() -> None:
    """Keep freed memory in the process: by default glibc returns it and requests it again at every
    step, which takes 5 to 10 % of the time."""
    if platform.libc_ver()[0] == "glibc":
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(-3, 1 << 30)  # M_MMAP_THRESHOLD
        mallopt(-1, 2**31 - 1)  # M_TRIM_THRESHOLD


def start(config: Config) -> World:
    """The world of this process: choose its device and precision, and join the other processes, if
    there are any."""
    device = choose_device(config.device)
    rank = int(os.environ.get("RANK", 0))
    size = int(os.environ.get("WORLD_SIZE", 1))
    parallel = "none"
    if size > 1 or config.parallel != "auto":
        parallel = choose_parallel(config, size)
    meeting = None
    if "RANK" in os.environ:  # set by torchrun
        device = own_device(config, device)
        meeting = join(config, device, rank, size)
    tune_malloc()
    if config.deterministic != torch.are_deterministic_algorithms_enabled():
        use_deterministic_algorithms(config.deterministic)  # imports torch._inductor
    precision = choose_precision(device, config.precision)
    if parallel == "fsdp" and precision.dtype is torch.float16:
        raise ValueError("parallel=fsdp does not support precision=fp16; choose bf16 or fp32")
    compiles = config.compile is True or (config.compile == "auto" and device.type == "cuda")
    scaler = torch.amp.GradScaler(device.type, enabled=precision.dtype is torch.float16)
    return World(rank, size, parallel, precision, scaler, meeting, compiles)


def end(code: int) -> NoReturn:
    """Exit. Freeing what DDP shares with the threads of gloo can deadlock, so nothing is freed."""
    if dist.is_initialized():
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


# ---- signals

STOP_SIGNALS = [s for s in signal.Signals if s.name in ("SIGINT", "SIGTERM", "SIGUSR2")]
received_signals: list[int] = []  # by this process


@contextmanager
def catch_signals() -> Iterator[None]:
    """A context in which a signal is recorded, so that the run stops after its step; a second one
    ends the process."""

    def note(number: int, frame: Any) -> None:
        # torchrun forwards a signal that all processes have received already: it is not a second
        is_forwarded = dist.is_initialized() and number in received_signals
        if received_signals and not is_forwarded:
            os._exit(128 + number)
        received_signals.append(number)

    handlers = {number: signal.signal(number, note) for number in STOP_SIGNALS}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        received_signals.clear()
