"""Cross-entropy that never holds the logits of a whole batch."""

import torch
import torch.nn.functional as F
from torch.autograd.function import once_differentiable

from configs.schema import IGNORE_INDEX

CHUNK = 512  # positions whose logits are held at a time, on a CPU
GPU_CHUNK = 4096  # small ones would leave a GPU idle, and move the gradient of the head more often


def chunk_size(hidden):
    return CHUNK if hidden.device.type == "cpu" else GPU_CHUNK


def loss_and_logit_grad(logits_NV, targets_N):
    """The summed loss and its gradient with respect to the logits, softmax minus one-hot."""
    probs_NV = logits_NV.softmax(-1, dtype=torch.promote_types(logits_NV.dtype, torch.float32))
    # probs is exp(logits - log_sum), so its largest entry gives log_sum exactly
    log_sum_N = logits_NV.amax(-1) - probs_NV.amax(-1).log()
    index = targets_N[:, None]
    total = log_sum_N.sum() - logits_NV.gather(-1, index).to(log_sum_N.dtype).sum()
    probs_NV.scatter_(-1, index, probs_NV.gather(-1, index) - 1)
    return total, probs_NV.to(logits_NV.dtype)


class ChunkedCrossEntropy(torch.autograd.Function):
    """Computes the gradient of each chunk in the forward pass, while its logits exist, so that none are
    stored or recomputed for the backward pass."""

    @staticmethod
    def forward(ctx, head, hidden_NC, targets_N, *parameters):
        total = hidden_NC.new_zeros((), dtype=torch.promote_types(hidden_NC.dtype, torch.float32))
        hidden_grad_NC = torch.empty_like(hidden_NC)
        grads = [torch.zeros_like(p, dtype=total.dtype) for p in parameters]
        size = chunk_size(hidden_NC)
        for start in range(0, len(hidden_NC), size):
            chunk = slice(start, start + size)
            with torch.enable_grad():
                rows = hidden_NC[chunk].detach().requires_grad_()
                logits = head(rows)
            chunk_loss, logit_grad = loss_and_logit_grad(logits.detach(), targets_N[chunk])
            hidden_grad_NC[chunk], *chunk_grads = torch.autograd.grad(logits, [rows, *parameters], logit_grad)
            total += chunk_loss
            for grad, chunk_grad in zip(grads, chunk_grads, strict=True):
                grad += chunk_grad
        ctx.save_for_backward(hidden_grad_NC, *[g.type_as(p) for g, p in zip(grads, parameters, strict=True)])
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx, scale):
        hidden_grad_NC, *grads = ctx.saved_tensors
        return None, hidden_grad_NC * scale, None, *[grad * scale for grad in grads]


def loss(hidden, head, targets, count=None):
    """The summed cross-entropy over all targets, and how many there are. Pass `count` where it is known, to
    avoid a synchronization on a GPU; it must be exact, because only that many targets are read."""
    if hidden.shape[:-1] != targets.shape:
        raise ValueError(f"targets must be {tuple(hidden.shape[:-1])}, as hidden, not {tuple(targets.shape)}")
    hidden, targets = hidden.flatten(0, -2), targets.flatten()
    count = int((targets != IGNORE_INDEX).sum()) if count is None else count
    if count < len(targets):
        target_positions = (targets == IGNORE_INDEX).to(torch.int8).argsort(stable=True)[:count]
        hidden, targets = hidden[target_positions], targets[target_positions]
    if torch.is_grad_enabled():
        trainable = [p for p in head.parameters() if p.requires_grad]
        return ChunkedCrossEntropy.apply(head, hidden, targets, *trainable), count
    total = 0
    size = chunk_size(hidden)
    for rows, chunk in zip(hidden.split(size), targets.split(size), strict=True):
        logits_NV = head(rows)
        # in bfloat16 the sum over a vocabulary would be off by a percent
        logits_NV = logits_NV.to(torch.promote_types(logits_NV.dtype, torch.float32))
        total = total + F.cross_entropy(logits_NV, chunk, reduction="sum")
    return total, count
