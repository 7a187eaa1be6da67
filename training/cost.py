"""Cost: what a step of a config needs of memory and compute, counted on fake tensors: no weight is
allocated."""

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from configs.cli import warn
from configs.schema import Config
from model.adapt import adapt
from model.loss import GPU_CHUNK
from model.precision import Precision
from model.transformer import build_model
from model.weights import trained_parameters
from training.optimizer import build_optimizers, state_tensors
from training.run import Run
from training.step import recompute_blocks


class Cost(NamedTuple):
    """Of the weights, and of one row of a batch; sizes in bytes."""

    model: nn.Module  # of fake tensors
    states: dict[str, int]  # what is kept of the weights, in words
    flops: int
    activations: float  # kept for the backward pass
    loss: int  # a chunk of logits, with its gradients

    @property
    def n_parameters(self) -> int:
        return sum(parameter.numel() for parameter in self.model.parameters())

    def memory(self, rows: int, shards: int) -> float:
        """Of a process that keeps one of `shards` parts of the states."""
        return sum(self.states.values()) / shards + rows * self.activations + self.loss


def count(config: Config, precision: Precision, vocab_size: int) -> Cost | None:
    """Nothing, with a warning, if a part does not support fake tensors."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    try:
        with FakeTensorMode(), precision.device:  # its kernels decide what is kept
            model = build_model(config.model, vocab_size)
            if config.adapt["kind"] != "none":
                adapt(model, config.adapt)
            flops = row_flops(model, config)
            activations: float = row_bytes(model, config, precision)
            if config.train.recompute == "block":  # kept: the inputs of all blocks, and one block
                recompute_blocks(model)
                inputs = row_bytes(model, config, precision)
                activations = inputs + (activations - inputs) / config.model.n_layers
            state = state_tensors(model, build_optimizers(config.optimizer, model))
    except Exception as error:  # whatever it is, a run is not stopped
        warn(f"the FLOPs and the memory of this model are unknown ({error!s:.200})")
        return None

    # autocast keeps a copy of each weight in 16 bits
    weight = 4 if precision.dtype == torch.float32 else 6
    trained = sum(parameter.nbytes for parameter in trained_parameters(model).values())
    states = {
        "weights": weight * sum(parameter.numel() for parameter in model.parameters()),
        "gradients": trained,
        "optimizer": sum(tensor.nbytes for tensor in state.values()),
        "EMA": trained if config.ema.decay else 0,
    }
    # a logit and its gradient, each in 32 and in 16 bits
    logits = GPU_CHUNK * vocab_size * 2 * (4 + 2)
    # the gradient of a weight in 32 bits; that of a chunk, and the cast of the weight, in 16
    head = config.model.d_model * vocab_size * (4 + 2 + 2)
    return Cost(model, states, flops, activations, logits + head)


def fake_inputs(config: Config, rows: int) -> dict[str, Tensor]:
    """As wide as the model can take."""
    tokens = torch.zeros(rows, config.model.context_length, dtype=torch.long)
    inputs = {"tokens": tokens}
    if config.model.kind == "encoder_decoder":
        inputs["source"] = tokens
    if config.data.get("document_mask"):
        inputs["documents"] = tokens
    return inputs


def row_flops(model: Any, config: Config) -> int:
    """Of a forward and a backward pass, which is twice the work. torch counts only matmuls, so
    attention has to run as matmuls."""
    from torch.utils.flop_counter import FlopCounterMode

    counter = FlopCounterMode(display=False)
    with counter, sdpa_kernel(SDPBackend.MATH), torch.no_grad():
        hidden = model.hidden(**fake_inputs(config, 1))
        if config.model.kind == "encoder":  # masked: 15 % of the tokens are targets
            n_targets = round(0.15 * config.model.context_length)
            hidden = hidden[:, : max(1, n_targets)]
        model.head(hidden)
    return 3 * counter.get_total_flops()


def row_bytes(model: Any, config: Config, precision: Precision) -> int:
    """What a second row adds to the activations: casts of the weights are kept once."""
    one = kept_bytes(model, fake_inputs(config, 1), precision)
    two = kept_bytes(model, fake_inputs(config, 2), precision)
    return two - one


def kept_bytes(model: Any, inputs: dict[str, Tensor], precision: Precision) -> int:
    """By a forward pass, for the backward pass."""
    storages: dict[int, Any] = {}

    def record(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        storages[storage._cdata] = storage  # held, so that no other takes its place
        return tensor

    hooks = torch.autograd.graph.saved_tensors_hooks(record, lambda tensor: tensor)
    with precision.autocast(), hooks:
        model.hidden(**inputs)
    return sum(storage.nbytes() for storage in storages.values())


def ideal_seconds(run: Run, peak: float) -> float | None:
    """Of a step at the peak FLOP/s of the GPU: MFU is measured by it."""
    config = run.config
    cost = count(config, run.world.precision, run.data.tokenizer.vocab_size)
    return cost and cost.flops * config.train.batch_size / run.world.size / peak
