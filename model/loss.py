"""Cross-entropy, -log softmax(logits)[target], summed: chunk_loss. The logits of a whole batch are
never held: loss() reads the positions in chunks. In training, chunk_gradients also computes the
gradients of a chunk while its logits exist, and KnownGradients keeps them for the backward pass,
which only scales them."""

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from configs.schema import IGNORE_INDEX
from model.attend import exact_dtype, matmul_dtype, soft_cap
from model.cpu import use_cpu_kernels
from model.embedding import Head

CHUNK = 512  # positions in a chunk on a CPU, at most; but more if the vocabulary is small
ALIGNMENT = 64  # pads the vocabulary: a GPU has no fast matmul for GPT-2's 50,257
UNSLICED = ("cuda",)  # where logits keep the padding, as -inf: a slice of them is slower
GPU_CHUNK = 4096  # small chunks leave a GPU idle, and move the gradient of the head more often


def chunk_loss(
    logits_NV: Tensor,
    targets_N: Tensor,
    weights_N: Tensor | None = None,
    *,
    logit_softcap: float | None = None,
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
) -> Tensor:
    """The summed loss of a chunk of positions; it may be any differentiable function of logits and
    targets. `weights` are factors of each position's cross-entropy; z_loss is the factor of
    log(sum(exp(logits)))^2 (arxiv.org/abs/2204.02311)."""
    logits_NV = soft_cap(logits_NV, logit_softcap)

    cross_entropy = partial(F.cross_entropy, logits_NV, targets_N, label_smoothing=label_smoothing)
    if weights_N is not None:
        total = (cross_entropy(reduction="none") * weights_N).sum()
    elif label_smoothing > 0 or not use_cpu_kernels(logits_NV):
        total = cross_entropy(reduction="sum")
    else:
        total = CrossEntropy.apply(logits_NV, targets_N)  # the same, but faster

    if z_loss > 0:
        total = total + z_loss * logits_NV.logsumexp(-1).square().sum()
    return total


def loss(
    hidden: Tensor,
    head: Head,
    targets: Tensor,
    count: int | None = None,
    weights: Tensor | None = None,
    compute: Callable | None = None,  # chunk_gradients, perhaps compiled
    **options: Any,  # of chunk_loss
) -> tuple[Tensor, int]:
    """The loss summed over all targets, and their number; `weights` has a factor for each. Pass
    `count` if it is known, to avoid a synchronization on a GPU; it must be exact, because only that
    many targets are read."""
    hidden = hidden.flatten(0, -2)
    labels = [field.flatten() for field in (targets, weights) if field is not None]

    is_ignored = labels[0] == IGNORE_INDEX
    if count is None:
        count = int((~is_ignored).sum())
    if count < len(is_ignored):
        hidden, *labels = drop_ignored([hidden, *labels], is_ignored, count)

    hidden = head.features(hidden)
    parameters = list(head.map.parameters())
    size = chunk_size(hidden, head.map.out_features)
    options["logit_softcap"] = head.logit_softcap
    if torch.is_grad_enabled():
        compute = partial(compute or chunk_gradients, **options)
        return loss_with_gradients(compute, size, labels, hidden, parameters), count

    total = hidden.new_zeros(())
    for rows, *chunk in chunks(size, hidden, *labels):
        logits = head.map(rows).to(exact_dtype(hidden))
        total = total + chunk_loss(logits, *chunk, **options)
    return total, count


class PaddedHead(NamedTuple):
    """A copy of the head's weight, and of its bias if any, in the dtype of matmuls. Its vocabulary
    is padded to a multiple of ALIGNMENT."""

    parameters: list[Tensor]
    vocab_size: int  # without padding
    is_trained: bool


def chunk_gradients(
    rows_NC: Tensor, padded: PaddedHead, labels: Sequence[Tensor], **options: Any
) -> tuple[Tensor, Sequence[Tensor]]:
    """The loss of a chunk and its gradients: those of its rows, and of the head's parameters if it
    is trained. torch.compile makes one graph of this function, which serves any number of chunks.
    On a GPU, while all options are off, chunk_loss gets logits whose last columns pad the
    vocabulary and are -inf."""
    # gradients are taken of inputs: parameters are among them only if they are trained
    inputs = [rows_NC, *padded.parameters] if padded.is_trained else [rows_NC]

    def loss_of(rows_NC: Tensor, *trained: Tensor) -> Tensor:
        logits = F.linear(rows_NC, *(trained or padded.parameters))

        # in bfloat16, a sum over the vocabulary would be off by a percent
        logits = logits.to(exact_dtype(rows_NC))
        if rows_NC.device.type in UNSLICED and not any(options.values()):
            # keep the padding: a slice of 50,257 of 50,304 columns is read at half the speed
            logits.detach()[:, padded.vocab_size :] = -math.inf  # their gradient is 0
        else:
            logits = logits[:, : padded.vocab_size]
        return chunk_loss(logits, *labels, **options)

    if torch.compiler.is_compiling():
        # the form that torch.compile can trace; in eager mode it would import the compiler
        numbers = tuple(range(len(inputs)))
        gradients, value = torch.func.grad_and_value(loss_of, numbers)(*inputs)
        return value, gradients

    leaves = [tensor.detach().requires_grad_() for tensor in inputs]
    value = loss_of(*leaves)
    return value.detach(), torch.autograd.grad(value, leaves)


def loss_with_gradients(
    compute: Callable,  # chunk_gradients, with the options of chunk_loss
    size: int,
    labels: Sequence[Tensor],  # targets, and weights if any
    hidden_NC: Tensor,
    parameters: list[nn.Parameter],
) -> Tensor:
    """The loss, for a backward pass that neither stores nor recomputes logits."""
    exact = exact_dtype(hidden_NC)
    low = matmul_dtype(hidden_NC)
    vocab_size = len(parameters[0])
    padding = -vocab_size % ALIGNMENT
    copies = [parameter.detach().to(low) for parameter in parameters]
    if padding:
        copies = [F.pad(p, [0, 0] * (p.ndim - 1) + [0, padding]) for p in copies]
    padded = PaddedHead(copies, vocab_size, any(p.requires_grad for p in parameters))
    trained = parameters if padded.is_trained else []

    total = hidden_NC.new_zeros((), dtype=exact)
    row_grads = []
    gradients = [torch.zeros_like(parameter, dtype=exact) for parameter in trained]

    for rows_NC, *chunk in chunks(size, hidden_NC.detach().to(low), *labels):
        value, (grad_NC, *head_grads) = compute(rows_NC, padded, chunk)
        total += value
        row_grads.append(grad_NC)

        for gradient, added in zip(gradients, head_grads, strict=True):
            gradient += added[:vocab_size]

    gradients = [gradient.type_as(parameters[0]) for gradient in gradients]
    rows_gradient = torch.cat(row_grads).type_as(hidden_NC)
    return KnownGradients.apply(total, [rows_gradient, *gradients], hidden_NC, *trained)


class KnownGradients(torch.autograd.Function):
    """A value whose gradients with respect to the inputs are known."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, gradients: list[Tensor], *inputs: Tensor) -> Tensor:
        ctx.save_for_backward(*gradients)
        return value.clone()  # an input may not be the output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, scale: Tensor) -> tuple[Tensor | None, ...]:
        return None, None, *(gradient * scale for gradient in ctx.saved_tensors)


class CrossEntropy(torch.autograd.Function):
    """The summed cross-entropy. It keeps only the softmax, which saves 5 % of a default step."""

    @staticmethod
    def forward(ctx: Any, logits_NV: Tensor, targets_N: Tensor) -> Tensor:
        probs_NV = logits_NV.softmax(-1)
        index_N1 = targets_N[:, None]
        ctx.save_for_backward(probs_NV, index_N1)

        # log_sum = logit - log(prob) for any column; that of the largest is the most exact
        log_sum_N = logits_NV.amax(-1) - probs_NV.amax(-1).log()
        return log_sum_N.sum() - logits_NV.gather(-1, index_N1).sum()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, scale: Tensor) -> tuple[Tensor, None]:
        """Softmax minus one-hot, written over the softmax: it can be read only once."""
        probs_NV, index_N1 = ctx.saved_tensors
        probs_NV.scatter_add_(-1, index_N1, probs_NV.new_full(index_N1.shape, -1))
        return probs_NV if scale == 1 else probs_NV.mul_(scale), None


def chunk_size(hidden: Tensor, vocab_size: int) -> int:
    """How many positions a chunk has. On a CPU, 256 take 5 % less time than 512 at width 128, and
    5 % more at width 384; but a chunk has a million logits at least."""
    if not hidden.is_cpu:
        return GPU_CHUNK
    return max(min(CHUNK, 2 * hidden.shape[-1]), 2**20 // vocab_size)


def chunks(size: int, *fields: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """(rows, targets, weights if any) of `size` positions at a time."""
    return zip(*(field.split(size) for field in fields), strict=True)


def drop_ignored(fields: list[Tensor], is_ignored: Tensor, count: int) -> list[Tensor]:
    """The `count` rows that have a target."""
    # a stable sort puts them first, in order; nonzero() would wait for the GPU
    positions = is_ignored.to(torch.int8).argsort(stable=True)[:count]
    return [field[positions] for field in fields]
