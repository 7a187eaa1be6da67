"""Cross-entropy that never holds the logits of a whole batch."""

import torch
import torch.nn.functional as F
from torch.autograd.function import once_differentiable

from configs.schema import IGNORE_INDEX
from model.attend import soft_cap

CHUNK = 512  # positions whose logits are held at a time, on a CPU; more if the vocabulary is small
GPU_CHUNK = 4096  # small ones would leave a GPU idle, and move the gradient of the head more often


def chunk_size(hidden, vocab_size):
    """On a CPU, what its cache holds, but enough positions that adding up the weight's gradient costs little:
    256 take 5 % less time than 512 at width 128, and 5 % more at width 384."""
    if hidden.device.type != "cpu":
        return GPU_CHUNK
    return max(min(CHUNK, 2 * hidden.shape[-1]), 2**20 // vocab_size)


def chunk_loss(logit_softcap, rows_NC, targets_N, weight_VC, *bias):
    """The summed loss of a chunk and its gradients with respect to rows, weight and, if any, bias."""
    logits_NV = F.linear(rows_NC, weight_VC, *bias)
    exact = torch.promote_types(logits_NV.dtype, torch.float32)
    logits_NV = soft_cap(logits_NV.to(exact), logit_softcap)
    probs_NV = logits_NV.softmax(-1)
    # probs is exp(logits - log_sum), so its largest entry gives log_sum exactly
    log_sum_N = logits_NV.amax(-1) - probs_NV.amax(-1).log()
    index = targets_N[:, None]
    total = log_sum_N.sum() - logits_NV.gather(-1, index).sum()
    # with respect to the logits, the gradient is softmax minus one-hot
    grad_NV = probs_NV.scatter_(-1, index, probs_NV.gather(-1, index) - 1)
    if logit_softcap is not None:
        grad_NV *= 1 - (logits_NV / logit_softcap) ** 2
    grad_NV = grad_NV.type_as(rows_NC)
    return (
        total,
        grad_NV @ weight_VC,
        grad_NV.mT @ rows_NC,
        *[grad_NV.sum(0, dtype=exact) for _ in bias],
    )


class ChunkedCrossEntropy(torch.autograd.Function):
    """Computes the gradient of each chunk in the forward pass, while its logits exist, so that none are
    stored or recomputed for the backward pass; without autograd, which would break torch.compile's graph."""

    @staticmethod
    def forward(ctx, logit_softcap, hidden_NC, targets_N, *parameters):
        exact = torch.promote_types(hidden_NC.dtype, torch.float32)
        low = (hidden_NC[:1] @ hidden_NC[:1].mT).dtype  # under autocast that of matmuls
        low_NC, *low_parameters = (
            tensor.to(low) for tensor in (hidden_NC, *parameters)
        )  # cast once
        total, hidden_grad_NC = hidden_NC.new_zeros((), dtype=exact), torch.empty_like(hidden_NC)
        grads = [torch.zeros_like(p, dtype=exact) for p in parameters]
        size = chunk_size(hidden_NC, len(parameters[0]))
        chunks = (tensor.split(size) for tensor in (hidden_grad_NC, low_NC, targets_N))
        for hidden_grad, rows, targets in zip(*chunks, strict=True):
            part, hidden_grad[:], *chunk_grads = chunk_loss(
                logit_softcap, rows, targets, *low_parameters
            )
            total = (
                total + part
            )  # not in place: compiled by torch 2.11, the result would have no gradient
            for grad, chunk_grad in zip(grads, chunk_grads, strict=True):
                grad += chunk_grad
        ctx.save_for_backward(
            hidden_grad_NC, *[g.type_as(p) for g, p in zip(grads, parameters, strict=True)]
        )
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx, scale):
        hidden_grad_NC, *grads = ctx.saved_tensors
        return None, hidden_grad_NC * scale, None, *[grad * scale for grad in grads]


def loss(hidden, head, targets, count=None, **options):
    """The summed cross-entropy over all targets, and how many there are. Pass `count` where it is known, to
    avoid a synchronization on a GPU; it must be exact, because only that many targets are read."""
    if hidden.shape[:-1] != targets.shape:
        raise ValueError(
            f"targets must be {tuple(hidden.shape[:-1])}, as hidden, not {tuple(targets.shape)}"
        )
    hidden, targets = hidden.flatten(0, -2), targets.flatten()
    count = int((targets != IGNORE_INDEX).sum()) if count is None else count
    if count < len(targets):
        target_positions = (targets == IGNORE_INDEX).to(torch.int8).argsort(stable=True)[:count]
        hidden, targets = hidden[target_positions], targets[target_positions]
    if torch.is_grad_enabled():
        inputs = head.features(hidden), targets, *head.map.parameters()
        return ChunkedCrossEntropy.apply(head.logit_softcap, *inputs), count
    total, size = 0, chunk_size(hidden, head.map.out_features)
    for rows, chunk in zip(hidden.split(size), targets.split(size), strict=True):
        logits_NV = head(rows)
        # in bfloat16 the sum over a vocabulary would be off by a percent
        logits_NV = logits_NV.to(torch.promote_types(logits_NV.dtype, torch.float32))
        total = total + F.cross_entropy(logits_NV, chunk, reduction="sum")
    return total, count
