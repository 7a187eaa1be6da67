"""Cross-entropy that never holds the logits of a whole batch."""

from collections.abc import Callable
from functools import partial
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
    logit_softcap: float | None = None,
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
) -> Tensor:
    """The loss of some positions, summed. Any differentiable function of logits and targets can
    stand here; z_loss is the factor of log(sum(exp(logits)))^2 (arxiv.org/abs/2204.02311)."""
    logits_NV = soft_cap(logits_NV, logit_softcap)

    if label_smoothing == 0 and cpu.use_cpu_kernels(logits_NV):
        total = cpu.CrossEntropy.apply(logits_NV, targets_N)
    else:
        total = F.cross_entropy(
            logits_NV, targets_N, reduction="sum", label_smoothing=label_smoothing
        )

    if z_loss > 0:
        total = total + z_loss * logits_NV.logsumexp(-1).square().sum()
    return total


def value_and_gradient(
    function: Callable[[Tensor, Tensor], Tensor], logits: Tensor, targets: Tensor
) -> tuple[Tensor, Tensor]:
    """The function's value, and its gradient with respect to the logits."""
    if torch.compiler.is_compiling():
        # the form that torch.compile can trace; in eager mode it would import the compiler
        gradient, value = torch.func.grad_and_value(function)(logits, targets)
        return value, gradient

    with torch.enable_grad():
        logits.requires_grad_()
        value = function(logits, targets)
        [gradient] = torch.autograd.grad(value, logits)
    return value.detach(), gradient


def aligned(tensor: Tensor, dim: int) -> Tensor:
    """Filled up with zeros to a multiple of ALIGNMENT."""
    missing = -tensor.shape[dim] % ALIGNMENT
    if not missing:
        return tensor
    dims_behind = tensor.ndim - dim - 1
    return F.pad(tensor, [0, 0] * dims_behind + [0, missing])


class ChunkedLoss(torch.autograd.Function):
    """Computes the gradients of each chunk in the forward pass, while its logits exist, so that
    none are stored or recomputed for the backward pass."""

    @staticmethod
    def forward(
        ctx: Any,
        function: Callable[..., Tensor],
        size: int,
        hidden_NC: Tensor,
        targets_N: Tensor,
        *parameters: Tensor,  # the weight of the head, and its bias if any
    ) -> Tensor:
        vocab_size = len(parameters[0])
        exact = torch.promote_types(hidden_NC.dtype, torch.float32)
        low = matmul_dtype(hidden_NC)
        low_NC = hidden_NC.to(low)
        weight, *bias = (aligned(parameter.to(low), 0) for parameter in parameters)

        total = hidden_NC.new_zeros((), dtype=exact)
        row_gradients = []
        is_trained = ctx.needs_input_grad[4]  # the head's weight, the fifth argument
        gradients = [torch.zeros_like(p, dtype=exact) for p in parameters if is_trained]
        for rows_NC, targets in zip(low_NC.split(size), targets_N.split(size), strict=True):
            # in bfloat16 the sum over a vocabulary would be off by a percent
            logits_NV = F.linear(rows_NC, weight, *bias)[:, :vocab_size]
            logits_NV = logits_NV.to(exact)
            value, grad_NV = value_and_gradient(function, logits_NV, targets)
            grad = aligned(grad_NV.to(low), 1)
            # not in place: compiled by torch 2.11, the result would have no gradient
            total = total + value
            row_gradients.append(grad @ weight)
            if is_trained:
                gradients[0] += (grad.mT @ rows_NC)[:vocab_size]
            if is_trained and bias:
                gradients[1] += grad_NV.sum(0, dtype=exact)

        gradients = [g.type_as(p) for g, p in zip(gradients, parameters, strict=False)]
        ctx.save_for_backward(torch.cat(row_gradients).type_as(hidden_NC), *gradients)
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, scale: Tensor) -> tuple[Tensor | None, ...]:
        hidden_gradient, *gradients = (gradient * scale for gradient in ctx.saved_tensors)
        frozen = [None] * len(ctx.needs_input_grad[4:])
        return None, None, hidden_gradient, None, *(gradients or frozen)


def loss(
    hidden: Tensor,
    head: Head,
    targets: Tensor,
    count: int | None = None,
    **options: Any,  # of chunk_loss
) -> tuple[Tensor, int]:
    """The summed loss over all targets, and how many there are. Pass `count` where it is known, to
    avoid a synchronization on a GPU; it must be exact, because only that many targets are read."""
    hidden = hidden.flatten(0, -2)
    targets = targets.flatten()
    if count is None:
        count = int((targets != IGNORE_INDEX).sum())
    if count < len(targets):
        # a stable sort puts the targets first, in their order; nonzero() would wait for a GPU
        is_ignored = (targets == IGNORE_INDEX).to(torch.int8)
        positions = is_ignored.argsort(stable=True)[:count]
        hidden = hidden[positions]
        targets = targets[positions]

    hidden = head.features(hidden)
    parameters = list(head.map.parameters())
    size = GPU_CHUNK
    if hidden.is_cpu:
        size = min(CHUNK, 2 * hidden.shape[-1])
        size = max(size, 2**20 // head.map.out_features)  # a million logits
    function: Any = partial(chunk_loss, logit_softcap=head.logit_softcap, **options)
    if torch.is_grad_enabled():
        return ChunkedLoss.apply(function, size, hidden, targets, *parameters), count

    total = hidden.new_zeros(())
    exact = torch.promote_types(hidden.dtype, torch.float32)
    for rows, chunk in zip(hidden.split(size), targets.split(size), strict=True):
        logits = F.linear(rows, *parameters).to(exact)
        total = total + function(logits, chunk)
    return total, count
