"""Block: one layer, x + f(norm(x)) for each of its sub-layers f."""

from collections.abc import Callable
from functools import partial
from inspect import signature
from typing import Any, NamedTuple

from torch import Tensor, nn

from configs.registry import Registry
from model.attend import Mask
from model.attention import Attention
from model.cache import MemoryCache, Slots, State
from model.norm import MakeNorm
from model.position import Rotate


class Shared(dict[str, Any]):
    """What layers leave for later ones in a forward pass, such as the values of the first. (FSDP
    copies plain dicts among a module's arguments, and what a layer adds would be lost.)"""


class AttentionContext(NamedTuple):
    """What a layer is told beside x; made once per forward pass for all layers that are alike."""

    mask: Mask
    rotate: Rotate | None = None  # applies rotary position embeddings
    memory: Tensor | None = None  # the encoder's output
    memory_mask: Mask | None = None
    visible: Tensor | None = None  # (B, T), false at padding
    documents: Tensor | None = None  # (B, T), the number of the document of each token
    tokens: Tensor | None = None  # (B, T), token ids
    shared: Any = None  # Shared, new in each forward pass
    cache: Any = None  # in decoding, the State of the part that is told


States = dict[str, State] | None  # of a layer, by the names of its parts
SubLayer = Callable[[Tensor], Tensor]


def asked_by(part: nn.Module) -> set[str]:
    """The fields of AttentionContext that its forward has a parameter for."""
    parameters = signature(part.forward).parameters.values()
    names = {p.name for p in parameters if p.kind is not p.VAR_POSITIONAL}
    return names & {*AttentionContext._fields}


class Block(nn.Module):
    """Self-attention, cross-attention if there is a memory, feed-forward. `residual` adds what a
    sub-layer computes to the residual stream."""

    needs_final_norm = True  # the residual stream leaves the last block unnormalized
    residual: Callable[[Tensor, SubLayer, nn.Module], Tensor]

    def __init__(
        self,
        attention: Attention,
        ffn: nn.Module,
        norm: MakeNorm,
        cross: Attention | None = None,
        dropout: float = 0.0,
        layer: int = 0,
    ):
        super().__init__()
        self.layer = layer
        self.attention = attention
        self.cross: Any = cross
        self.ffn = ffn
        self.sub_layers = ["attention", "ffn"] if cross is None else ["attention", "cross", "ffn"]
        basic = {"mask", "rotate", "cache"}
        self.asked = {"attention": basic | asked_by(attention), "ffn": asked_by(ffn)}
        self.make_norms(norm)
        self.drop = nn.Dropout(dropout)

    def make_norms(self, norm: MakeNorm) -> None:
        self.attention_norm = norm()
        self.ffn_norm = norm()
        self.cross_norm = nn.Identity() if self.cross is None else norm()

    def new_states(self, slots: Slots) -> dict[str, State]:
        """For decoding: one for each part with a method new_cache, and one for cross-attention."""
        parts: dict[str, Any] = dict(self.named_children())
        states = {
            name: part.new_cache(slots)
            for name, part in parts.items()
            if hasattr(part, "new_cache")
        }
        return states | {"cross": MemoryCache()}

    def forward(self, x: Tensor, context: AttentionContext, states: States = None) -> Tensor:
        for name in self.sub_layers:
            layer = partial(self.compute, name, context, states)
            x = self.residual(x, layer, getattr(self, f"{name}_norm"))
        return x

    def compute(self, name: str, context: AttentionContext, states: States, x: Tensor) -> Tensor:
        """What a sub-layer adds; it is told what it asks for."""
        if states is not None:
            context = context._replace(cache=states.get(name))
        if name == "cross":
            memory = context.memory
            return self.cross(x, memory, mask=context.memory_mask, cache=context.cache)
        told = {field: getattr(context, field) for field in self.asked[name]}
        return getattr(self, name)(x, **told)


def blocks_of(model: nn.Module) -> list[nn.Module]:
    return [module for module in model.modules() if isinstance(module, Block)]


class PreNormBlock(Block):
    """Sub-layers read a normalized copy of the residual stream (arxiv.org/abs/2002.04745)."""

    def residual(self, x: Tensor, layer: SubLayer, norm: nn.Module) -> Tensor:
        return x + self.drop(layer(norm(x)))


BLOCKS: Registry[type[Block]] = Registry(pre=PreNormBlock)  # blocks.py has the others
