"""Cross-entropy that never holds the logits of a whole batch."""

from collections.abc import Callable, Iterator
from itertools import repeat
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from configs.schema import IGNORE_INDEX
from model import cpu
from model.attend import matmul_dtype, soft_cap
from model.embedding import Head

# positions whose logits are held at a time, on a CPU; more if the vocabulary is small. Twice the
# width is enough: 256 take 5 % less time than 512 at width 128, and 5 % more at width 384
CHUNK = 512
ALIGNMENT = 64  # of the vocabulary: a GPU has no fast matmul for GPT-2's 50,257
GPU_CHUNK = 4096  # small ones would leave a GPU idle, and move the gradient of the head more often


def chunk_loss(
    logits_NV: Tensor,
    targets_N: Tensor,
    weights_N: Tensor | None = None,
    *,
    logit_softcap: float | None = None,
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
) -> Tensor:
    """The loss of some positions, summed. Any differentiable function of logits and targets can
    stand here. `weights` are factors of each position's cross-entropy; z_loss is the factor of
    log(sum(exp(logits)))^2 (arxiv.org/abs/2204.02311)."""
    logits_NV = soft_cap(logits_NV, logit_softcap)

    if weights_N is not None:
        losses_N = F.cross_entropy(
            logits_NV, targets_N, reduction="none", label_smoothing=label_smoothing
        )
        total = (losses_N * weights_N).sum()
    elif label_smoothing == 0 and cpu.use_cpu_kernels(logits_NV):
        total = cpu.CrossEntropy.apply(logits_NV, targets_N)
    else:
        total = F.cross_entropy(
            logits_NV, targets_N, reduction="sum", label_smoothing=label_smoothing
        )

    if z_loss > 0:
        total = total + z_loss * logits_NV.logsumexp(-1).square().sum()
    return total


def value_and_gradient(
    function: Callable[[Tensor], Tensor], logits: Tensor
) -> tuple[Tensor, Tensor]:
    """The function's value, and its gradient with respect to the logits."""
    if torch.compiler.is_compiling():
        # the form that torch.compile can trace; in eager mode it would import the compiler
        gradient, value = torch.func.grad_and_value(function)(logits)
        return value, gradient

    with torch.enable_grad():
        logits.requires_grad_()
        value = function(logits)
        [gradient] = torch.autograd.grad(value, logits)
    return value.detach(), gradient


def aligned(tensor: Tensor, dim: int) -> Tensor:
    """Filled up with zeros to a multiple of ALIGNMENT."""
    missing = -tensor.shape[dim] % ALIGNMENT
    if not missing:
        return tensor
    dims_behind = tensor.ndim - dim - 1
    return F.pad(tensor, [0, 0] * dims_behind + [0, missing])


def chunk_gradients(
    rows_NC: Tensor,
    targets_N: Tensor,
    weights_N: Tensor | None,
    parameters: list[Tensor],
    vocab_size: int,
    is_trained: bool,
    **options: Any,
) -> tuple[Tensor, Tensor, list[Tensor]]:
    """The loss of a chunk and its gradients: those of its rows, and of the head's parameters (its
    weight, and its bias if any) if it is trained. torch.compile makes one graph of this function,
    which serves any number of chunks."""
    weight, *bias = parameters
    exact = torch.promote_types(rows_NC.dtype, torch.float32)
    logits_NV = F.linear(rows_NC, weight, *bias)[:, :vocab_size]
    # in bfloat16 the sum over a vocabulary would be off by a percent
    logits_NV = logits_NV.to(exact)

    def function(logits_NV: Tensor) -> Tensor:
        return chunk_loss(logits_NV, targets_N, weights_N, **options)

    value, grad_NV = value_and_gradient(function, logits_NV)
    grad = aligned(grad_NV.to(rows_NC.dtype), 1)
    gradients = []
    if is_trained:
        gradients.append((grad.mT @ rows_NC)[:vocab_size])
    if is_trained and bias:
        gradients.append(grad_NV.sum(0, dtype=exact))
    return value, grad @ weight, gradients


def chunks(
    size: int, hidden: Tensor, targets: Tensor, weights: Tensor | None
) -> Iterator[tuple[Tensor, Tensor, Tensor | None]]:
    """(rows, targets, weights) of so many positions at a time."""
    parts = repeat(None) if weights is None else weights.split(size)
    return zip(hidden.split(size), targets.split(size), parts, strict=False)


class ChunkedLoss(torch.autograd.Function):
    """Computes the gradients of each chunk in the forward pass, while its logits exist, so that
    none are stored or recomputed for the backward pass."""

    @staticmethod
    def forward(
        ctx: Any,
        differentiate: Callable[..., Any],  # chunk_gradients, or compiled
        size: int,
        options: dict[str, Any],  # of chunk_loss
        hidden_NC: Tensor,
        targets_N: Tensor,
        weights_N: Tensor | None,
        *parameters: Tensor,  # the weight of the head, and its bias if any
    ) -> Tensor:
        exact = torch.promote_types(hidden_NC.dtype, torch.float32)
        low = matmul_dtype(hidden_NC)
        low_NC = hidden_NC.to(low)
        low_parameters = [aligned(parameter.to(low), 0) for parameter in parameters]

        total = hidden_NC.new_zeros((), dtype=exact)
        row_gradients = []
        is_trained = ctx.needs_input_grad[6]  # the head's weight, the seventh argument
        gradients = [torch.zeros_like(p, dtype=exact) for p in parameters if is_trained]
        for chunk in chunks(size, low_NC, targets_N, weights_N):
            value, row_gradient, added = differentiate(
                *chunk, low_parameters, len(parameters[0]), is_trained, **options
            )
            # not in place: compiled by torch 2.11, the result would have no gradient
            total = total + value
            row_gradients.append(row_gradient)
            for gradient, new in zip(gradients, added, strict=True):
                gradient += new

        gradients = [g.type_as(p) for g, p in zip(gradients, parameters, strict=False)]
        ctx.save_for_backward(torch.cat(row_gradients).type_as(hidden_NC), *gradients)
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, scale: Tensor) -> tuple[Tensor | None, ...]:
        hidden_gradient, *gradients = (gradient * scale for gradient in ctx.saved_tensors)
        frozen = [None] * len(ctx.needs_input_grad[6:])
        return None, None, None, hidden_gradient, None, None, *(gradients or frozen)


def loss(
    hidden: Tensor,
    head: Head,
    targets: Tensor,
    count: int | None = None,
    weights: Tensor | None = None,
    differentiate: Callable[..., Any] = chunk_gradients,
    **options: Any,  # of chunk_loss
) -> tuple[Tensor, int]:
    """The summed loss over all targets, and how many there are; `weights` are factors of each. Pass
    `count` where it is known, to avoid a synchronization on a GPU; it must be exact, because only
    that many targets are read."""
    hidden = hidden.flatten(0, -2)
    targets = targets.flatten()
    weights = None if weights is None else weights.flatten()
    if count is None:
        count = int((targets != IGNORE_INDEX).sum())
    if count < len(targets):
        # a stable sort puts the targets first, in their order; nonzero() would wait for a GPU
        is_ignored = (targets == IGNORE_INDEX).to(torch.int8)
        positions = is_ignored.argsort(stable=True)[:count]
        hidden = hidden[positions]
        targets = targets[positions]
        weights = None if weights is None else weights[positions]

    hidden = head.features(hidden)
    parameters = list(head.map.parameters())
    size = GPU_CHUNK
    if hidden.is_cpu:
        size = min(CHUNK, 2 * hidden.shape[-1])
        size = max(size, 2**20 // head.map.out_features)  # a million logits
    options["logit_softcap"] = head.logit_softcap
    if torch.is_grad_enabled():
        total = ChunkedLoss.apply(
            differentiate, size, options, hidden, targets, weights, *parameters
        )
        return total, count

    total = hidden.new_zeros(())
    exact = torch.promote_types(hidden.dtype, torch.float32)
    for rows, chunk, factors in chunks(size, hidden, targets, weights):
        logits = F.linear(rows, *parameters).to(exact)
        total = total + chunk_loss(logits, chunk, factors, **options)
    return total, count
