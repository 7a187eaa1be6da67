"""Inference: prepares a model with fewer and faster linear maps, and the same results."""

from torch import nn

from model.attention import MultiHeadAttention
from model.block import blocks_of
from model.cpu import pack_linears
from model.feedforward import MLP
from model.linear import Part, join


def merge(owner: nn.Module, *names: str) -> None:
    """Merge these maps of the same input into one."""
    maps = [getattr(owner, name) for name in names]
    if any(type(linear) is not nn.Linear for linear in maps):
        return
    weight, bias = join(maps)
    n_out, n_in = weight.shape
    whole = nn.Linear(n_in, n_out, bias is not None, device="meta")
    whole.weight = nn.Parameter(weight)
    if bias is not None:
        whole.bias = nn.Parameter(bias)
    widths = [linear.out_features for linear in maps]
    for index, name in enumerate(names):
        setattr(owner, name, Part(whole, widths, index))


def prepare(model: nn.Module) -> None:
    """Prepare a model for inference only: its weights can no longer be trained or saved."""
    for block in blocks_of(model):
        if isinstance(block.attention, MultiHeadAttention):
            merge(block.attention, "query", "key", "value")
        if isinstance(block.ffn, MLP):
            merge(block.ffn, "gate", "up")
    pack_linears(model)
    model.requires_grad_(False)
