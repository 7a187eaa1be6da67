"""Distributed: processes that share each batch. No other file knows of ranks."""

import os
from contextlib import nullcontext
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


class Ranks(NamedTuple):
    """This process among those that torchrun started; alone, where it did not."""

    rank: int = 0
    world: int = 1

    @property
    def first(self):
        """Whether this is the one that writes and shows."""
        return self.rank == 0

    def wrap(self, module):
        return DistributedDataParallel(module, gradient_as_bucket_view=True) if self.world > 1 else module

    def quiet(self, module):
        """Gradients are not exchanged here, but with those of the last micro-batch."""
        return module.no_sync() if self.world > 1 else nullcontext()

    def sum(self, *numbers, device="cpu"):
        """Each number summed over all processes."""
        if self.world == 1:
            return list(numbers)
        together = torch.tensor(numbers, dtype=torch.float64, device=device)
        dist.all_reduce(together)
        return together.tolist()

    def least(self, number, device="cpu"):
        """The smallest of what the processes have."""
        if self.world == 1:
            return number
        together = torch.tensor([number], dtype=torch.float64, device=device)
        dist.all_reduce(together, dist.ReduceOp.MIN)
        return together.item()


def join(device):
    """(ranks, the device of this one)"""
    if "RANK" not in os.environ and "WORLD_SIZE" not in os.environ:
        return Ranks(), device
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
    return Ranks(dist.get_rank(), dist.get_world_size()), device


def alone():
    return not dist.is_initialized()


def writes():
    """Whether this process is the one that writes; known before it joins the others."""
    return os.environ.get("RANK", "0") == "0"


def leave():
    if dist.is_initialized():
        dist.destroy_process_group()
