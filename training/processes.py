"""Processes: how those that torchrun has started meet, and wait for each other."""

import os
import threading
import time
from contextlib import suppress
from datetime import timedelta
from itertools import count, cycle
from typing import Any

import torch
import torch.distributed as dist

from configs.schema import Config

PERIOD = 1.0  # seconds between two signs of life
POLL = 0.05


class Meeting:
    """Where they wait for the slowest, however long it takes, as long as each shows that it is
    alive. limit: the seconds after which one that does not is lost."""

    def __init__(self, store: Any, rank: int, size: int, limit: float) -> None:
        self.store = store
        self.rank = rank
        self.size = size
        self.limit = limit
        self.numbers = count()
        threading.Thread(target=self.show_life, daemon=True).start()

    def show_life(self) -> None:
        with suppress(RuntimeError):  # the store has ended with the run
            while True:
                self.store.add(f"alive/{self.rank}", 1)
                time.sleep(PERIOD)

    def wait(self) -> None:
        key = f"meeting/{next(self.numbers)}"
        self.store.add(key, 1)
        heard: dict[tuple[int, int], float] = {}  # when each sign was first seen
        ranks = cycle(range(self.size))
        while self.store.add(key, 0) < self.size:
            time.sleep(POLL)
            rank = next(ranks)
            sign = (rank, self.store.add(f"alive/{rank}", 0))
            first_seen = heard.setdefault(sign, time.monotonic())
            if time.monotonic() - first_seen > self.limit:
                raise RuntimeError(f"process {rank} timed out after {self.limit:g} seconds")


def join(config: Config, device: torch.device, size: int) -> tuple[torch.device, int, Meeting]:
    """(the device of this process, its rank, where it waits for the others)"""
    if ":" in config.device:
        reason = "but each process of torchrun has a GPU of its own"
        raise ValueError(f"device={config.device}, {reason}; choose device=cuda")
    if device.type == "cuda":  # of its machine's, each process has one
        local_rank = int(os.environ["LOCAL_RANK"])
        if local_rank >= torch.cuda.device_count():
            reason = f"process {local_rank + 1} has no GPU of its own"
            raise ValueError(f"{reason}; lower --nproc_per_node")
        device = torch.device("cuda", local_rank)
        torch.cuda.set_device(device)
    timeout = timedelta(seconds=config.ddp_timeout)
    backend = "nccl" if device.type == "cuda" else "gloo"
    store, rank, _ = next(dist.rendezvous("env://", timeout=timeout))
    dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=timeout)
    return device, rank, Meeting(store.clone(), rank, size, config.ddp_timeout)
