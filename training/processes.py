"""Several processes, which torchrun started: they meet, share a model and split work."""

import os
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from itertools import count, cycle
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from configs.schema import Config

PERIOD = 1.0  # seconds between two heartbeats
POLL = 0.05


@dataclass
class Meeting:
    """Where processes wait for the slowest, however long it takes, while each sends heartbeats.
    limit: the seconds without one after which a process counts as lost."""

    store: Any
    rank: int
    size: int
    limit: float

    def __post_init__(self) -> None:
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


def choose_parallel(config: Config, size: int) -> str:
    parallel = "ddp" if config.parallel == "auto" else config.parallel
    if size == 1 and parallel != "none":
        raise ValueError(
            f"parallel={parallel} needs several processes; use torchrun --nproc_per_node=2 train.py, "
            "or parallel=auto"
        )

    if size > 1 and parallel == "none":
        raise ValueError(
            f"parallel=none, but torchrun started {size} processes; choose ddp or fsdp"
        )

    rows = config.train.batch_size
    if rows % size:
        raise ValueError(f"train.batch_size is {rows}; expected a multiple of the {size} processes")
    return parallel


def join(config: Config, device: torch.device, rank: int, size: int) -> Meeting:
    timeout = timedelta(seconds=config.ddp_timeout)
    backend = "nccl" if device.type == "cuda" else "gloo"
    store, *_ = next(dist.rendezvous("env://", timeout=timeout))
    dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=timeout)
    return Meeting(store.clone(), rank, size, config.ddp_timeout)


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


def share_buffers(module: nn.Module, inputs: tuple) -> None:
    """A forward pass, also of an evaluation, begins with the buffers of the main process, which are
    those that a checkpoint holds."""
    for buffer in module.buffers():
        dist.broadcast(buffer, 0)
