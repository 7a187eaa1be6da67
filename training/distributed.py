"""Processes that split each batch, and the signals that stop them."""

import faulthandler
import os
import re
import signal
import sys
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager, nullcontext, suppress
from datetime import timedelta
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

from configs.errors import RankError, StopRequested

TIMED_OUT = re.compile("timed out|timeout", re.I)  # in torch's messages
DISCONNECTED = re.compile("gloo|remote process|Connection (closed|reset)|communicator was aborted")


@contextmanager
def waiting_for(what):
    """Turn torch's errors about another process into a RankError; after a timeout, print all stacks."""
    try:
        yield
    except RuntimeError as error:
        if TIMED_OUT.search(str(error)):
            faulthandler.dump_traceback(sys.stderr)
            raise RankError(
                f"timed out (ddp_timeout) waiting for {what}; see the stacks above"
            ) from None
        if DISCONNECTED.search(str(error)):
            raise RankError("another process of this run has ended; see its own error") from None
        raise


class Dist(NamedTuple):
    """This process among those that torchrun started, or a process alone."""

    rank: int = 0
    world_size: int = 1
    parallel: str = "none"  # ddp or fsdp, of several processes

    @property
    def is_main(self):
        return self.rank == 0  # it writes and prints

    @property
    def share(self):
        """The part of each batch that this process gets: (rank, world_size)."""
        return self.rank, self.world_size

    @waiting_for("the model of another process")
    def wrap(self, module):
        return DDP(module, gradient_as_bucket_view=True) if self.parallel == "ddp" else module

    @contextmanager
    def no_sync(self, module):
        """Accumulate gradients locally; they are exchanged with those of the last micro-batch."""
        if self.parallel == "fsdp":
            module.set_requires_gradient_sync(False)
            yield
            module.set_requires_gradient_sync(True)
        else:
            with module.no_sync() if self.parallel == "ddp" else nullcontext():
                yield

    @waiting_for("another process")
    def all_reduce(self, tensor):
        """Sum a tensor over all processes, in place, without waiting for a GPU."""
        dist.all_reduce(tensor)
        return tensor

    @waiting_for("another process")
    def all_reduce_sum(self, *numbers, device="cpu"):
        """Each number summed over all processes."""
        if self.world_size == 1:
            return list(numbers)
        return self.all_reduce(torch.tensor(numbers, dtype=torch.float64, device=device)).tolist()

    def all_reduce_max(self, number, device="cpu"):
        own = [number if rank == self.rank else 0.0 for rank in range(self.world_size)]
        return max(self.all_reduce_sum(*own, device=device))

    def broadcast(self, text, device="cpu"):
        """The text of the main process, at most 1,000 bytes."""
        codes = text.encode().ljust(1000) if self.is_main else bytes(1000)
        return bytes(map(int, self.all_reduce_sum(*codes, device=device))).decode().rstrip()

    def run_slow(self, function, device, only_main=False):
        """function(), which may take one process longer than ddp_timeout: the others wait in many short
        collectives, for as long as it answers. All return together."""
        if self.world_size == 1:
            return function()
        takes_part = self.is_main or not only_main
        future, running = (
            ThreadPoolExecutor(1).submit(function if takes_part else lambda: None),
            True,
        )
        while running:
            finished, _ = wait([future], timeout=0.5)
            if finished and future.exception():
                break
            [running] = self.all_reduce_sum(not finished, device=device)
        return future.result()


@waiting_for("another process to start")
def init_distributed(device, parallel, timeout):
    """(Dist, the device of this process)"""
    if "RANK" not in os.environ and "WORLD_SIZE" not in os.environ:
        if parallel not in ("auto", "none"):
            command = "torchrun --nproc_per_node=2 train.py"
            raise ValueError(
                f"parallel={parallel} needs several processes; use {command}, or parallel=auto"
            )
        return Dist(), device
    if missing := [name for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK") if name not in os.environ]:
        raise ValueError(
            f"{missing[0]} is not set, but other variables of torchrun are; start with torchrun"
        )
    if device.type == "cuda":
        local, n_gpus = int(os.environ["LOCAL_RANK"]), torch.cuda.device_count()
        if local >= n_gpus:
            raise ValueError(
                f"process {local + 1} has no GPU: there are {n_gpus}; lower --nproc_per_node"
            )
        device = torch.device("cuda", local)
        torch.cuda.set_device(device)
    faulthandler.enable()  # NCCL aborts a process that has waited too long
    backend, device_id = ("nccl", device) if device.type == "cuda" else ("gloo", None)
    dist.init_process_group(backend, timeout=timedelta(seconds=timeout), device_id=device_id)
    rank, world_size = dist.get_rank(), dist.get_world_size()
    if parallel == "none" and world_size > 1:
        raise ValueError(
            f"parallel=none, but torchrun started {world_size} processes; choose ddp or fsdp"
        )
    if parallel == "auto":
        parallel = "ddp" if world_size > 1 else "none"
    return Dist(rank, world_size, parallel), device


def is_main_rank():
    """Whether this process is the main one; known before the processes have connected."""
    return os.environ.get("RANK", "0") == "0"


def exit_process(code):
    """sys.exit(code), without freeing what DDP shares with the threads of gloo: that can deadlock."""
    if dist.is_initialized():
        with suppress(OSError):
            sys.stdout.flush()
        os._exit(code)
    sys.exit(code)


STOP_SIGNALS = [
    s for s in signal.Signals if s.name in ("SIGINT", "SIGTERM", "SIGUSR2")
]  # not all on Windows
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
    # torchrun forwards a signal that a scheduler may have sent to all processes already
    repeated = dist.is_initialized() and number in received
    if received and not repeated:
        os._exit(128 + number)
    received.append(number)


def stop_flags():
    return [number in received for number in STOP_SIGNALS]


def check_stop(flags):
    """Raise StopRequested if the flags of any process say so."""
    for number, stop in zip(STOP_SIGNALS, flags, strict=True):
        if stop:
            raise StopRequested(number.name)


def stoppable(steps):
    """The same steps; a single process can be stopped between them, several only between training steps."""
    for step in steps:
        if not dist.is_initialized():
            check_stop(stop_flags())
        yield step
