"""Cost: the memory and compute of a step, counted on fake tensors, so no weight is allocated."""

import re
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from configs.cli import warn
from configs.compose import CONFIGS, read_yaml
from configs.schema import Config
from model.adapt import adapt
from model.block import blocks_of
from model.loss import GPU_CHUNK
from model.precision import Precision
from model.transformer import build_model
from model.weights import trained_parameters
from training.optimizer import build_optimizers, state_tensors
from training.run import Run


class Cost(NamedTuple):
    """The cost of the weights, and of one row of a batch; sizes in bytes."""

    model: nn.Module  # of fake tensors
    states: dict[str, int]  # sizes by name: weights, gradients, optimizer, EMA
    flops: int
    activations: float  # kept for the backward pass
    loss: int  # a chunk of logits, with its gradients

    def memory(self, rows: int, shards: int) -> float:
        """The memory of a process that keeps one of `shards` parts of the states."""
        return sum(self.states.values()) / shards + rows * self.activations + self.loss


def count(config: Config, precision: Precision, vocab_size: int) -> Cost | None:
    """The cost of a config; None, with a warning, if a part does not support fake tensors."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    try:
        with FakeTensorMode(), precision.device:  # its kernels decide what is kept
            model = build_model(config.model, vocab_size)
            adapt(model, config.adapt)
            flops = row_flops(model, config)

            # what a second row adds: casts of the weights are kept once
            one, two = [kept_bytes(model, config, precision, rows) for rows in (1, 2)]
            state = state_tensors(model, build_optimizers(config.optimizer, model))
    except Exception as error:  # whatever it is, it does not stop a run
        warn(f"the FLOPs and the memory of this model are unknown ({error!s:.200})")
        return None

    activations: float = two - one
    if config.train.recompute == "block":  # kept: the inputs of all blocks, and one block
        n_blocks = len(blocks_of(model))
        stream = 4 * config.model.context_length * config.model.d_model
        activations = n_blocks * stream + activations / n_blocks

    # autocast keeps a copy of each weight in 16 bits
    weight = 4 if precision.dtype == torch.float32 else 6
    trained = sum(parameter.nbytes for parameter in trained_parameters(model).values())
    states = {
        "weights": weight * sum(parameter.numel() for parameter in model.parameters()),
        "gradients": trained,
        "optimizer": sum(tensor.nbytes for tensor in state.values()),
        "EMA": trained if config.ema.decay else 0,
    }

    # per logit of a chunk: it and its gradient, each in 32 and in 16 bits. Per weight of the head:
    # its gradient in 32 bits; that of a chunk, and the cast of the weight, in 16
    n_logits = len(config.model.classes or []) or vocab_size
    loss = n_logits * (12 * GPU_CHUNK + 8 * config.model.d_model)
    return Cost(model, states, flops, activations, loss)


def fake_inputs(config: Config, rows: int) -> dict[str, Tensor]:
    """Inputs of the full context length."""
    tokens = torch.zeros(rows, config.model.context_length, dtype=torch.long)
    inputs = {"tokens": tokens}
    if config.model.kind == "encoder_decoder":
        inputs["source"] = tokens
    if config.data.get("document_mask"):
        inputs["documents"] = tokens
    return inputs


def row_flops(model: Any, config: Config) -> int:
    """FLOPs of a forward pass and a backward pass, which is twice the work. torch counts only
    matmuls, so attention has to run as matmuls."""
    from torch.utils.flop_counter import FlopCounterMode

    counter = FlopCounterMode(display=False)
    with counter, sdpa_kernel(SDPBackend.MATH), torch.no_grad():
        hidden = model.hidden(**fake_inputs(config, 1))
        if config.model.kind == "encoder":  # masked: 15 % of the tokens are targets
            n_targets = round(0.15 * config.model.context_length)
            hidden = hidden[:, : max(1, n_targets)]
        model.head(hidden)
    return 3 * counter.get_total_flops()


def kept_bytes(model: Any, config: Config, precision: Precision, rows: int) -> int:
    """The bytes that a forward pass keeps for the backward pass."""
    storages = set()  # it holds them, so that no address is used twice

    def record(tensor: Tensor) -> Tensor:
        storages.add(tensor.untyped_storage())
        return tensor

    hooks = torch.autograd.graph.saved_tensors_hooks(record, lambda tensor: tensor)
    with precision.autocast(), hooks:
        model.hidden(**fake_inputs(config, rows))
    return sum(storage.nbytes() for storage in storages)


def read_gpus() -> dict[str, dict[str, float]]:
    return read_yaml(CONFIGS / "gpus.yaml")


def peak_of(name: str) -> float | None:
    """The peak FLOP/s of a GPU, by its name; a 3090 Ti or a laptop's 4090 is another GPU."""
    for words, gpu in read_gpus().items():
        if re.search(rf"\b{words}\b(?! Ti| Laptop)", name):
            return gpu["tflops"] * 1e12
    return None


def peak_flops(precision: Precision) -> float | None:
    """The device's peak FLOP/s, if known."""
    if precision.device.type != "cuda" or precision.dtype == torch.float32:
        return None
    return peak_of(torch.cuda.get_device_name(precision.device))


def ideal_seconds(run: Run) -> float | None:
    """The time of a step at the peak of the device, if both are known."""
    precision = run.world.precision
    peak = peak_flops(precision)
    if peak and (cost := count(run.config, precision, run.data.tokenizer.vocab_size)):
        return cost.flops * run.config.train.batch_size / run.world.size / peak
    return None
