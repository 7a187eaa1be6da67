"""Inference: a model that is only read has fewer and faster linear maps, with the same results."""

from torch import nn

from model.attention import MultiHeadAttention
from model.block import blocks_of
from model.cpu import pack_linears
from model.feedforward import MLP
from model.linear import Merged, Part


def merge(owner: nn.Module, *names: str) -> None:
    """These maps of the same input become parts of one."""
    maps = [getattr(owner, name) for name in names]
    if all(type(linear) is nn.Linear for linear in maps):
        whole = Merged(maps)
        for index, name in enumerate(names):
            setattr(owner, name, Part(whole, index))


def prepare(model: nn.Module) -> None:
    """For inference alone: the weights can no longer be trained or saved."""
    for block in blocks_of(model):
        if isinstance(block.attention, MultiHeadAttention):
            merge(block.attention, "query", "key", "value")
        if isinstance(block.ffn, MLP):
            merge(block.ffn, "gate", "up")
    pack_linears(model)
    model.requires_grad_(False)
