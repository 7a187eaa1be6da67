"""The rows of a micro-batch: what fits is found before the first step, without one."""

from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from configs.compose import compose
from data.batch import Batch
from tests.parts import refused
from training.run import Run, TrainState
from training.step import fit_micro_batch

pytestmark = pytest.mark.quick
ROWS = 24


class Near(Batch):
    """No device is needed."""

    def to(self, device):
        return self


class Limited(nn.Module):
    """Runs out of memory with more than `limit` rows, of which a gradient takes the room of two."""

    def __init__(self, limit):
        super().__init__()
        self.limit = limit
        self.weight = nn.Parameter(torch.zeros(()))
        self.register_buffer("passes", torch.zeros(()))
        self.tried = []

    def forward(self, inputs, targets, n_targets):
        n = len(targets)
        self.passes += 1
        self.tried.append(n)
        # with DDP nothing is exchanged: other processes would wait for one that runs out of memory
        assert not self.require_backward_grad_sync
        needed = n if self.weight.grad is None else n + 2
        if needed > self.limit:
            raise torch.OutOfMemoryError("full")
        return {"loss": self.weight * n}


def fit(module, *overrides, device="cuda", size=1, found=0, parallel="none"):
    """fit_micro_batch in one of `size` processes, each of a GPU."""
    world = SimpleNamespace(rank=0, size=size, parallel=parallel, sum=torch.tensor)
    world.precision = SimpleNamespace(autocast=nullcontext)
    world.device = SimpleNamespace(type=device)
    batch = Near({}, torch.zeros(ROWS, 1), ROWS)
    data = SimpleNamespace(train=SimpleNamespace(widest=lambda: batch))
    state = TrainState(micro_batch_size=found)
    config = compose([f"train.batch_size={ROWS}", *overrides])
    return fit_micro_batch(Run(config, data, world, module, [], None, state), module)


LIMITS = [(26, [24, 24]), (24, [24, 24, 12, 12]), (5, [24, 12, 6, 3, 3])]


@pytest.mark.parametrize("limit, tried", LIMITS)
def test_on_a_gpu_it_is_halved_until_it_fits_beside_gradients(capsys, limit, tried):
    """As in a step of several micro-batches. It leaves no trace."""
    module = Limited(limit)
    assert fit(module) == tried[-1] and module.tried == tried
    assert module.weight.grad is None and module.weight == 0 and module.passes == 0
    sentence = "warning: out of memory; trying micro-batches of"
    expected = [f"{sentence} {rows}" for rows in dict.fromkeys(tried[1:]) if rows < 24]
    assert capsys.readouterr().err.splitlines() == expected


def test_not_even_one_row():
    with refused("micro-batches of 1 do not fit on the GPU; lower train.", MemoryError):
        fit(Limited(0))


def test_fsdp_does_not_go_on_after_running_out_of_memory():
    sentence = "micro-batches of 12 do not fit on the GPU; lower train.micro_batch_size, "
    with refused(sentence, MemoryError):
        fit(Limited(6), size=2, parallel="fsdp")


def test_what_was_found_before_a_resume_is_not_sought_again():
    module = Limited(0)
    assert fit(module, found=6) == 6
    assert fit(module, size=8, found=6) == 3
    assert not module.tried


@pytest.mark.parametrize(
    "overrides, size, rows",
    [("", 2, 12), ("model.context_length=1024", 1, 16), ("train.micro_batch_size=20", 2, 12)],
)
def test_on_a_cpu_nothing_is_tried(overrides, size, rows):
    module = Limited(0)
    found = fit(module, *overrides.split(), device="cpu", size=size)
    assert found == rows and not module.tried
