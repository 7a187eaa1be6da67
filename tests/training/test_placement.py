"""A step reads nothing back from its device and copies nothing to it but the batch: on `meta` both show."""

from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from configs.compose import compose
from configs.registry import build
from configs.schema import IGNORE_INDEX
from data.objectives import Batch
from model.precision import Precision
from model.transformer import build_model
from training.distributed import Dist
from training.optimizer import OPTIMIZERS
from training.step import LossModule, TrainStep

ROWS, LENGTH = 4, 32
PRESETS = sorted(path.stem for path in (Path(__file__).parents[2] / "configs/model").glob("*.yaml"))


class DeviceCrossings(TorchDispatchMode):
    """Counts copies to the device, and names the other operations that have tensors on both sides."""

    def __init__(self):
        super().__init__()
        self.copies, self.others = 0, set()

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        output = operation(*args, **(kwargs or {}))
        inputs = {x.device.type for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)}
        outputs = {x.device.type for x in tree_leaves(output) if isinstance(x, torch.Tensor)}
        if operation is torch.ops.aten._to_copy.default and (inputs, outputs) == (
            {"cpu"},
            {"meta"},
        ):
            self.copies += 1
        elif len(inputs | outputs) > 1:
            self.others.add(str(operation))
        return output


def host_batch(kind):
    """Rows with different numbers of targets."""
    tokens = torch.zeros(ROWS, LENGTH, dtype=torch.long)
    inputs = {"tokens": tokens} | ({"source": tokens} if kind == "encoder_decoder" else {})
    targets = tokens.masked_fill(
        torch.arange(LENGTH) >= torch.arange(5, 5 + ROWS)[:, None], IGNORE_INDEX
    )
    return Batch(inputs, targets, int((targets != IGNORE_INDEX).sum()))


@pytest.mark.parametrize("micro_batch_size", [4, 2])
@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
@pytest.mark.parametrize("preset", PRESETS)
def test_a_step_stays_on_its_device(preset, optimizer, micro_batch_size):
    config = compose([f"model={preset}", f"optimizer={optimizer}", "size=tiny"])
    with torch.device("meta"):
        model = build_model(config.model, 256)
    optimizer = build("optimizer", OPTIMIZERS, config.optimizer, {"model": model})
    precision, batch = (
        Precision(torch.device("meta"), torch.float32, "for a test"),
        host_batch(model.kind),
    )
    step = TrainStep(
        LossModule(model), optimizer, precision, Dist(), micro_batch_size, max_grad_norm=1.0
    )
    with DeviceCrossings() as crossings:
        step.backward(batch, batch.count)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step(1.0, step.scaler)
    assert not crossings.others
    assert crossings.copies == (ROWS // micro_batch_size) * (len(batch.inputs) + 1)
