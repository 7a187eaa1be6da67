"""The processes that split each batch: how they start, share a model, add up numbers and stop
together."""

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from itertools import count, cycle
from typing import Any, NamedTuple, NoReturn

import torch
import torch.distributed as dist
from torch import Tensor, nn

from configs.schema import Config
from model.cpu import tune_malloc
from model.cuda import is_sharded
from model.precision import Precision, choose_device, choose_precision, use_deterministic_algorithms

PERIOD = 1.0  # seconds between two heartbeats
POLL = 0.05


class Meeting:
    """Where processes wait for the slowest, however long it takes, while each sends heartbeats.
    limit: the seconds without one after which a process counts as lost."""

    def __init__(self, store: Any, rank: int, size: int, limit: float) -> None:
        self.store = store
        self.rank = rank
        self.size = size
        self.limit = limit
        self.numbers = count()
        threading.Thread(target=self.show_life, daemon=True).start()

    def show_life(self) -> None:
        with suppress(RuntimeError):  # the store ends with the run
            while True:
                self.store.add(f"alive/{self.rank}", 1)
                time.sleep(PERIOD)

    def wait(self) -> None:
        key = f"meeting/{next(self.numbers)}"
        self.store.add(key, 1)
        heard: dict[tuple[int, int], float] = {}  # when each heartbeat was first seen
        ranks = cycle(range(self.size))
        while self.store.add(key, 0) < self.size:
            time.sleep(POLL)
            rank = next(ranks)
            sign = (rank, self.store.add(f"alive/{rank}", 0))
            first_seen = heard.setdefault(sign, time.monotonic())
            if time.monotonic() - first_seen > self.limit:
                raise RuntimeError(f"process {rank} timed out after {self.limit:g} seconds")


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

    @property
    def share(self) -> tuple[int, int]:
        """The part of each batch that this process gets."""
        return self.rank, self.size

    def sum(self, *numbers: float | Tensor) -> Tensor:
        """Each number summed over all processes; nothing waits for the GPU until the sums are
        read."""
        total = torch.stack([self.scalar(number) for number in numbers])
        if self.size > 1:
            dist.all_reduce(total)
        return total

    def scalar(self, number: float | Tensor) -> Tensor:
        """A number as float64 on the device, filled in there: copying it to a GPU would wait."""
        place = "cpu" if self.device.type == "mps" else self.device  # MPS has no float64
        if isinstance(number, Tensor):
            return number.detach().to(place).double()
        return torch.full((), float(number), dtype=torch.float64, device=place)

    def wait(self) -> None:
        """Wait for the slowest process, however long it reads its data or writes to the disk."""
        if self.meeting:
            self.meeting.wait()


def start(config: Config) -> World:
    """Join the other processes, if there are any, after a check of the settings."""
    device = choose_device(config.device)
    rank = int(os.environ.get("RANK", 0))
    size = int(os.environ.get("WORLD_SIZE", 1))
    parallel = choose_parallel(config, size)
    meeting = None
    if "RANK" in os.environ:  # set by torchrun
        device = own_device(config, device)
        timeout = timedelta(seconds=config.ddp_timeout)
        backend = "nccl" if device.type == "cuda" else "gloo"
        store, *_ = next(dist.rendezvous("env://", timeout=timeout))
        dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=timeout)
        meeting = Meeting(store.clone(), rank, size, config.ddp_timeout)
    tune_malloc()
    use_deterministic_algorithms(config.deterministic)
    precision = choose_precision(device, config.precision)
    if parallel == "fsdp" and precision.dtype is torch.float16:
        raise ValueError("parallel=fsdp does not support precision=fp16; choose bf16 or fp32")
    compiles = config.compile is True or (config.compile == "auto" and device.type == "cuda")
    return World(rank, size, parallel, precision, precision.scaler(), meeting, compiles)


def own_device(config: Config, device: torch.device) -> torch.device:
    """The GPU of this process: each has one of those of its machine."""
    if ":" in config.device:
        reason = "but each process of torchrun has a GPU of its own"
        raise ValueError(f"device={config.device}, {reason}; choose device=cuda")
    if device.type != "cuda":
        return device
    local_rank = int(os.environ["LOCAL_RANK"])
    if local_rank >= torch.cuda.device_count():
        raise ValueError(f"process {local_rank + 1} has no GPU of its own; lower --nproc_per_node")
    device = torch.device("cuda", local_rank)
    torch.cuda.set_device(device)
    return device


def choose_parallel(config: Config, size: int) -> str:
    parallel = config.parallel
    if parallel == "auto":
        parallel = "none" if size == 1 else "ddp"
    if size == 1 and parallel != "none":
        hint = "use torchrun --nproc_per_node=2 train.py, or parallel=auto"
        raise ValueError(f"parallel={parallel} needs several processes; {hint}")
    if size > 1 and parallel == "none":
        raise ValueError(
            f"parallel=none, but torchrun started {size} processes; choose ddp or fsdp"
        )
    if config.train.batch_size % size:
        rows = config.train.batch_size
        raise ValueError(f"train.batch_size is {rows}; expected a multiple of the {size} processes")
    return parallel


def end(code: int) -> NoReturn:
    """Exit. Freeing what DDP shares with the threads of gloo can deadlock, so nothing is freed."""
    if dist.is_initialized():
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


# ---- sharing a model


def build_device(world: World) -> torch.device:
    """Where a new model is built: with FSDP, only the main process has memory for all of it."""
    return torch.device("meta" if world.parallel == "fsdp" and not world.is_main else "cpu")


def share_buffers(module: nn.Module, inputs: tuple) -> None:
    """A forward pass, also of an evaluation, begins with the buffers of the main process, which are
    those that a checkpoint holds."""
    for buffer in module.buffers():
        dist.broadcast(buffer, 0)


def whole(tensor: Any) -> Tensor:
    """The whole of a sharded tensor; all processes have to call this."""
    return tensor.full_tensor() if is_sharded(tensor) else tensor


def shard_like(tensor: Tensor, sharded: Any) -> Tensor:
    """Move a whole tensor, which all processes have, to the device of another, and shard it in the
    same way."""
    tensor = tensor.to(sharded.device)
    if not is_sharded(sharded):
        return tensor
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(tensor, sharded.device_mesh, sharded.placements, src_data_rank=None)


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
