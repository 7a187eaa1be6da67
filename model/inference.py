"""Inference: prepares a model with fewer and faster linear maps; results are the same up
to rounding."""

from functools import cache, cached_property

import torch
from torch import Tensor, nn

from model.attention import MultiHeadAttention
from model.block import blocks_of
from model.feedforward import MLP
from model.linear import Part, join

LARGE = 6_000_000  # bytes


def prepare(model: nn.Module) -> None:
    """Prepare a model for inference only: its weights can no longer be trained or saved."""
    for block in blocks_of(model):
        if isinstance(block.attention, MultiHeadAttention):
            merge_maps(block.attention, "query", "key", "value")
        if isinstance(block.ffn, MLP):
            merge_maps(block.ffn, "gate", "up")

    pack_linears(model)
    model.requires_grad_(False)


def merge_maps(owner: nn.Module, *names: str) -> None:
    """Merge these maps of the same input into one, if all are plain (an MLP may have no gate)."""
    maps = [getattr(owner, name) for name in names]
    if any(type(linear) is not nn.Linear for linear in maps):
        return
    weight, bias = join(maps)
    n_out, n_in = weight.shape
    whole = nn.Linear(n_in, n_out, bias is not None, device="meta")
    whole.weight = nn.Parameter(weight)

    if bias is not None:
        whole.bias = nn.Parameter(bias)
    end = 0

    for name, linear in zip(names, maps, strict=True):
        start, end = end, end + linear.out_features
        setattr(owner, name, Part(whole, slice(start, end)))


def pack_linears(model: nn.Module) -> None:
    """Pack the linear maps, for inference only; if oneDNN cannot, they stay as they are."""
    weight = next(model.parameters())
    if not weight.is_cpu or not torch.backends.mkldnn.is_available():
        return
    dtypes = [torch.float32]
    if torch.ops.mkldnn._is_mkldnn_bf16_supported():
        dtypes.append(torch.bfloat16)
    if weight.dtype not in dtypes:
        return

    pack = cache(PackedLinear)  # maps that are merged have several parents
    for parent in list(model.modules()):
        for name, module in parent.named_children():
            if type(module) is nn.Linear and module.weight.ndim == 2:
                setattr(parent, name, pack(module))


class PackedLinear(nn.Module):
    """A linear map with its weights in oneDNN's own layout. nn.Linear converts bf16 weights to it
    at each call, and leaves float32 to another library: packed, a token takes 0.4 to 0.8 of the
    time. A large weight is read faster for four rows than for one: a token of a 124M model then
    takes 0.92 of the time in float32, 0.97 in bf16."""

    def __init__(self, linear: nn.Linear):
        super().__init__()
        self.packed = torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach())
        self.bias = linear.bias

    def forward(self, x: Tensor) -> Tensor:
        if self.packed.nbytes > LARGE and x.ndim > 1 and x.numel() == x.shape[-1]:
            return self.forward(torch.cat([x] * 4))[:1]
        return torch.ops.mkldnn._linear_pointwise(x, self.packed, self.bias, "none", [], "")

    @cached_property
    def weight(self) -> Tensor:
        """The unpacked weight, for MLA, which multiplies by it itself."""
        return self.packed.to_dense()
