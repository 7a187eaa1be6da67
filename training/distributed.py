"""Distributed: processes that share each batch. No other file knows of ranks."""

import os
import signal
from contextlib import contextmanager, nullcontext
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from configs.errors import StopRequested


class Dist(NamedTuple):
    """This process among those that torchrun started; alone, where it did not."""

    rank: int = 0
    world_size: int = 1

    @property
    def is_main(self):
        """Whether this is the one that writes and shows."""
        return self.rank == 0

    def wrap(self, module):
        return (
            DistributedDataParallel(module, gradient_as_bucket_view=True) if self.world_size > 1 else module
        )

    def no_sync(self, module):
        """Gradients are not exchanged here, but with those of the last micro-batch."""
        return module.no_sync() if self.world_size > 1 else nullcontext()

    def all_reduce_sum(self, *numbers, device="cpu"):
        """Each number summed over all processes."""
        if self.world_size == 1:
            return list(numbers)
        together = torch.tensor(numbers, dtype=torch.float64, device=device)
        dist.all_reduce(together)
        return together.tolist()

    def all_reduce_min(self, number, device="cpu"):
        """The smallest of what the processes have."""
        if self.world_size == 1:
            return number
        together = torch.tensor([number], dtype=torch.float64, device=device)
        dist.all_reduce(together, dist.ReduceOp.MIN)
        return together.item()


def init_distributed(device):
    """(ranks, the device of this one)"""
    if "RANK" not in os.environ and "WORLD_SIZE" not in os.environ:
        return Dist(), device
    missing = [name for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK") if name not in os.environ]
    if missing:
        raise ValueError(
            f"{missing[0]} is not set, though others of torchrun's variables are; start by torchrun"
        )
    local = int(os.environ["LOCAL_RANK"])
    if device.type == "cuda":
        if local >= torch.cuda.device_count():
            raise ValueError(f"there are {torch.cuda.device_count()} GPUs and this is process {local + 1}")
        device = torch.device("cuda", local)
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    return Dist(dist.get_rank(), dist.get_world_size()), device


def is_single_process():
    return not dist.is_initialized()


def is_main_rank():
    """Whether this process is the one that writes; known before it joins the others."""
    return os.environ.get("RANK", "0") == "0"


def shut_down():
    if dist.is_initialized():
        dist.destroy_process_group()


STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR2)
received = []  # by this process; signals are its own, whoever runs in it


@contextmanager
def catching_signals():
    received.clear()
    before = {number: signal.signal(number, on_signal) for number in STOP_SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        received.clear()


def on_signal(number, frame):
    if received:
        os._exit(128 + number)
    received.append(number)


def raise_if_stopped(ranks, device):
    """Raise Stopped in all processes once any of them was asked."""
    raise_stop(int(-ranks.all_reduce_min(-max(received, default=0), device=device)))


def stoppable(steps):
    """The same steps, until the process is asked; together with others, it waits for the end of the step."""
    for step in steps:
        if is_single_process():
            raise_stop(max(received, default=0))
        yield step


def raise_stop(number):
    if number:
        raise StopRequested(signal.Signals(number).name)
