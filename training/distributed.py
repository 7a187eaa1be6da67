"""Processes that split each batch, and the signals that stop them."""

import os
import signal
from contextlib import contextmanager, nullcontext
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

from configs.errors import StopRequested


class Dist(NamedTuple):
    """This process among those that torchrun started, or a process alone."""

    rank: int = 0
    world_size: int = 1

    @property
    def is_main(self):
        return self.rank == 0  # it writes and prints

    def wrap(self, module):
        return module if self.world_size == 1 else DDP(module, gradient_as_bucket_view=True)

    def no_sync(self, module):
        """Accumulate gradients locally; they are exchanged with those of the last micro-batch."""
        return module.no_sync() if self.world_size > 1 else nullcontext()

    def all_reduce_sum(self, *numbers, device="cpu"):
        """Each number summed over all processes."""
        if self.world_size == 1:
            return list(numbers)
        tensor = torch.tensor(numbers, dtype=torch.float64, device=device)
        dist.all_reduce(tensor)
        return tensor.tolist()

    def barrier(self, device):
        """Wait for the other processes: torchrun kills all of them as soon as one has exited."""
        self.all_reduce_sum(0, device=device)


def init_distributed(device):
    """(Dist, the device of this process)"""
    if "RANK" not in os.environ and "WORLD_SIZE" not in os.environ:
        return Dist(), device
    if missing := [name for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK") if name not in os.environ]:
        raise ValueError(f"{missing[0]} is not set, but other variables of torchrun are; start with torchrun")
    if device.type == "cuda":
        local, n_gpus = int(os.environ["LOCAL_RANK"]), torch.cuda.device_count()
        if local >= n_gpus:
            raise ValueError(f"process {local + 1} has no GPU: there are {n_gpus}; lower --nproc_per_node")
        device = torch.device("cuda", local)
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    return Dist(dist.get_rank(), dist.get_world_size()), device


def is_main_rank():
    """Whether this process is the main one; known before the processes have connected."""
    return os.environ.get("RANK", "0") == "0"


def shut_down():
    if dist.is_initialized():
        dist.destroy_process_group()


STOP_SIGNALS = [s for s in signal.Signals if s.name in ("SIGINT", "SIGTERM", "SIGUSR2")]  # not all on Windows
received = []  # the signals of this process


@contextmanager
def catching_signals():
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


def check_stop(ranks, device, past_deadline=False):
    """Whether any process is past its deadline. Raises StopRequested in all of them once any got a signal."""
    stops = [number in received for number in STOP_SIGNALS]
    *stops, late = ranks.all_reduce_sum(*stops, past_deadline, device=device)
    for number, stop in zip(STOP_SIGNALS, stops, strict=True):
        if stop:
            raise StopRequested(number.name)
    return late > 0


def stoppable(steps):
    """The same steps; a single process can be stopped between them, several only between training steps."""
    for step in steps:
        if not dist.is_initialized():
            check_stop(Dist(), None)
        yield step
