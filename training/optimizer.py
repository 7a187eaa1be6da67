"""Optimizers: AdamW for everything, or Muon for the hidden matrices and AdamW for the rest."""

from functools import cache, partial
from inspect import unwrap
from itertools import groupby

import torch
import torch.nn as nn

from configs.registry import Decay, NonNegative, Positive
from model.attention import MultiHeadAttention
from model.embedding import Embedding
from model.precision import fast_bf16, processor
from training.sharding import is_sharded, like, local, orthogonalize_in_turn


class Eager:
    """Methods without torch's wrappers, which import torch._dynamo before the first step (0.4 s)."""

    add_param_group = unwrap(torch.optim.Optimizer.add_param_group)
    zero_grad = unwrap(torch.optim.Optimizer.zero_grad)


class AdamW(Eager, torch.optim.AdamW):
    step = torch.no_grad()(unwrap(torch.optim.AdamW.step))


class BatchedMuon(Eager, torch.optim.Muon):
    """Muon (kellerjordan.github.io/posts/muon) that updates matrices of one shape together, in a dtype that
    is fast on the device: up to a quarter less time for a step of a small model than torch's."""

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            matrices = sorted(
                (p for p in group["params"] if p.grad is not None), key=lambda p: p.shape
            )
            for (rows, columns), same_shape in groupby(matrices, key=lambda p: p.shape):
                params, momentum = list(same_shape), group["momentum"]
                for p in params:
                    if not self.state[p]:
                        self.state[p]["momentum_buffer"] = torch.zeros_like(p)
                grads = [local(p.grad) for p in params]
                buffers = [local(self.state[p]["momentum_buffer"]) for p in params]
                torch._foreach_lerp_(buffers, grads, 1 - momentum)
                updates = torch._foreach_lerp(grads, buffers, momentum)
                if is_sharded(params[0]):
                    updates = orthogonalize_in_turn(
                        updates, params, partial(newton_schulz, group=group)
                    )
                else:
                    updates = newton_schulz(torch.stack(updates), group)
                parts = [local(p) for p in params]
                if group["weight_decay"]:
                    torch._foreach_mul_(parts, 1 - group["lr"] * group["weight_decay"])
                torch._foreach_add_(
                    parts, list(updates), alpha=-group["lr"] * max(1, rows / columns) ** 0.5
                )


def newton_schulz(x, group):
    """Roughly the nearest orthogonal matrices: each iteration moves the singular values closer to 1."""
    a, b, c = group["ns_coefficients"]
    dtype, tall = x.dtype, x.shape[-2] > x.shape[-1]
    x = (x.mT if tall else x).to(matmul_dtype(x.device.type))
    x = x / x.norm(dim=(-2, -1), keepdim=True).clamp(min=group["eps"])
    for _ in range(group["ns_steps"]):
        square = x @ x.mT
        square = torch.baddbmm(square, square, square, beta=b, alpha=c)
        x = torch.baddbmm(x, square, x, beta=a)
    return (x.mT if tall else x).to(dtype)


@cache
def matmul_dtype(device):
    slow_bf16 = device == "mps" or (device == "cpu" and not fast_bf16(processor()))
    return torch.float32 if slow_bf16 else torch.bfloat16


STATE_KEYS = {AdamW: ("step", "exp_avg", "exp_avg_sq"), BatchedMuon: ("momentum_buffer",)}


class Optimizer:
    """Several torch optimizers, each for some of the parameters, as one."""

    def __init__(self, model, optimizers):
        self.names, self.optimizers = {p: name for name, p in model.named_parameters()}, optimizers
        self.groups = [group for optimizer in optimizers for group in optimizer.param_groups]
        for group in self.groups:
            group["base_lr"] = group["lr"]

    @property
    def lr(self):
        return self.groups[0]["lr"]  # Muon's, where AdamW has adamw_lr_ratio times it

    def step(self, lr_factor, scaler, overflow=False):
        """After an overflow no parameter moves; the scaler alone would skip only one of the optimizers."""
        for group in self.groups:
            group["lr"] = group["base_lr"] * lr_factor
        for optimizer in () if overflow else self.optimizers:
            scaler.step(optimizer)
        scaler.update()
        for optimizer in self.optimizers:
            optimizer.zero_grad()

    def reset(self):
        """Forget all state and gradients."""
        for optimizer in self.optimizers:
            optimizer.state.clear()
            optimizer.zero_grad()

    def entries(self):
        """(name, optimizer, parameter, key) of every state tensor."""
        for optimizer in self.optimizers:
            for p in (p for group in optimizer.param_groups for p in group["params"]):
                for key in STATE_KEYS[type(optimizer)]:
                    yield f"{self.names[p]}.{key}", optimizer, p, key

    def tensors(self):
        return {
            name: o.state[p][key] for name, o, p, key in self.entries() if key in o.state.get(p, ())
        }

    def expected_state(self):
        """Tensors with the names, dtypes and shapes of the state after a step."""
        return {name: torch.empty(()) if key == "step" else p for name, _, p, key in self.entries()}

    def load(self, tensors):
        """Load the (name, tensor) pairs of what tensors() returned: one by one, for all may be too large."""
        entries = {name: entry for name, *entry in self.entries()}
        for name, tensor in tensors:
            optimizer, p, key = entries[name]
            on_device = (
                key != "step" or optimizer.defaults["fused"]
            )  # else AdamW has its step on the CPU
            tensor = tensor.to(p.device if on_device else "cpu")
            optimizer.state[p][key] = like(tensor, p) if tensor.ndim else tensor


def adamw(groups, lr, beta1, beta2, eps):
    """lr, and no weight decay, where a group has none of its own."""
    groups = [group for group in groups if group["params"]]
    fused = all(p.device.type in ("cuda", "cpu") for group in groups for p in group["params"])
    return AdamW(
        groups, lr=lr, betas=(float(beta1), float(beta2)), eps=eps, weight_decay=0.0, fused=fused
    )


def make_adamw(
    model, lr: Positive, beta1: Decay, beta2: Decay, eps: Positive, weight_decay: NonNegative
):
    """Weight decay is for matrices, not for gains and biases."""
    matrices = [p for p in model.parameters() if p.ndim >= 2]
    vectors = [p for p in model.parameters() if p.ndim < 2]
    groups = [{"params": matrices, "weight_decay": weight_decay}, {"params": vectors}]
    return Optimizer(model, [adamw(groups, lr, beta1, beta2, eps)])


def make_muon(model, lr: Positive, momentum: Decay, weight_decay: NonNegative, adamw_lr_ratio: Positive,
              beta1: Decay, beta2: Decay, eps: Positive,
              embedding_lr_ratio: Positive | None = None):  # fmt: skip
    """Muon for the hidden matrices; AdamW for embeddings, head and vectors, at fractions of lr."""
    modules = [module for name, module in model.named_modules() if not name.startswith("head.")]
    hidden = [module.weight for module in modules if isinstance(module, nn.Linear)]
    queries = {m.query.weight: m.query_size for m in modules if isinstance(m, MultiHeadAttention)}
    groups = {lr: []}
    for (
        parameter
    ) in hidden:  # Muon's steps do not depend on the size of a matrix: smaller for small queries
        groups.setdefault(lr * queries.get(parameter, 1.0), []).append(parameter)
    groups = [{"params": parameters, "lr": lr} for lr, parameters in groups.items()]
    muon = BatchedMuon(groups, lr=lr, momentum=momentum, weight_decay=weight_decay)
    embeddings = [p for m in modules if isinstance(m, Embedding) for p in m.parameters()]
    taken = {*hidden, *embeddings}
    others = [p for p in model.parameters() if p not in taken]
    groups = [
        {"params": embeddings, "lr": (embedding_lr_ratio or adamw_lr_ratio) * lr},
        {"params": others},
    ]
    return Optimizer(model, [muon, adamw(groups, adamw_lr_ratio * lr, beta1, beta2, eps)])


OPTIMIZERS = {"adamw": make_adamw, "muon": make_muon}
