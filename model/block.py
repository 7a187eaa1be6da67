"""Block: one layer, x + f(norm(x)) for each of its sub-layers f."""

from collections.abc import Callable, Mapping
from functools import partial
from inspect import signature
from typing import Any, NamedTuple

from torch import Tensor, nn

from configs.registry import Registry
from model.attend import NO_MASK, Mask
from model.attention import Attention
from model.cache import Slots, State
from model.norm import MakeNorm
from model.position import Rotate


class AttentionContext(NamedTuple):
    """What a layer gets besides x; made once per forward pass for all layers of a kind, but for its
    states."""

    mask: Mask = NO_MASK
    rotate: Rotate | None = None  # applies rotary position embeddings
    memory: Tensor | None = None  # the encoder's output
    memory_mask: Mask = NO_MASK
    visible: Tensor | None = None  # (B, T), false at padding
    documents: Tensor | None = None  # (B, T), the document number of each token
    tokens: Tensor | None = None  # (B, T), token ids
    shared: Any = None  # a UserDict, new in each forward pass: what layers leave for later ones
    states: Mapping[str, State] = {}  # in decoding, those of this layer, by the names of its parts


SubLayer = Callable[[Tensor], Tensor]


class Block(nn.Module):
    """Self-attention, cross-attention if there is a memory, feed-forward. Each reads a normalized
    copy of the residual stream (pre-norm, arxiv.org/abs/2002.04745); other blocks override
    `residual`."""

    needs_final_norm = True  # the residual stream leaves the last block unnormalized

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
        basic = {"mask", "rotate", "cache"}  # every attention takes them, if only as **options
        self.reads = {"attention": basic | fields_read_by(attention), "ffn": fields_read_by(ffn)}
        self.make_norms(norm)
        self.drop = nn.Dropout(dropout)

    def forward(self, x: Tensor, context: AttentionContext) -> Tensor:
        x = self.residual(x, partial(self.self_attend, context=context), self.attention_norm)
        if self.cross is not None:
            x = self.residual(x, partial(self.cross_attend, context=context), self.cross_norm)
        x = self.residual(x, partial(self.feed_forward, context=context), self.ffn_norm)
        return x

    def residual(self, x: Tensor, sublayer: SubLayer, norm: nn.Module) -> Tensor:
        """Add what a sub-layer computes to the residual stream."""
        normed_BTC = norm(x)
        return x + self.drop(sublayer(normed_BTC))

    def self_attend(self, x: Tensor, context: AttentionContext) -> Tensor:
        return self.attention(x, **self.arguments_of("attention", context))

    def cross_attend(self, x: Tensor, context: AttentionContext) -> Tensor:
        own = context.states.get("cross")
        return self.cross(x, context.memory, mask=context.memory_mask, cache=own)

    def feed_forward(self, x: Tensor, context: AttentionContext) -> Tensor:
        return self.ffn(x, **self.arguments_of("ffn", context))

    def arguments_of(self, name: str, context: AttentionContext) -> dict:
        """What this part's forward takes besides x: usually mask, rotate and cache for attention,
        and nothing for ffn; but any field of the context for which it has a parameter."""
        cache = context.states.get(name)  # a part's own
        names = self.reads[name]
        return {key: cache if key == "cache" else getattr(context, key) for key in names}

    def make_norms(self, norm: MakeNorm) -> None:
        self.attention_norm = norm()
        self.ffn_norm = norm()
        self.cross_norm = nn.Identity() if self.cross is None else norm()

    def new_states(self, slots: Slots) -> dict[str, State]:
        """States for decoding, of each part that has new_cache()."""
        parts: Any = self.named_children()
        return {name: part.new_cache(slots) for name, part in parts if hasattr(part, "new_cache")}


BLOCKS: Registry[type[Block]] = Registry(pre=Block)  # blocks.py has the others


def blocks_of(model: nn.Module) -> list[nn.Module]:
    return [module for module in model.modules() if isinstance(module, Block)]


def fields_read_by(part: nn.Module) -> set[str]:
    """Fields of AttentionContext, and "cache", that the part's forward has as parameters."""
    return {*signature(part.forward).parameters} & {*AttentionContext._fields, "cache"}
