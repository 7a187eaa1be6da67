"""Block: one layer. Its kinds differ only in where the norms are."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from torch import Tensor, nn

from configs.registry import Registry
from model.attend import Mask
from model.attention import Attention
from model.cache import LayerCache
from model.norm import MakeNorm
from model.position import Rotate


class AttentionContext(NamedTuple):
    """What the attention of every layer needs beside x; made once per forward pass
    for all layers that are alike in it."""

    mask: Mask
    rotate: Rotate | None = None  # applies rotary position embeddings
    memory: Tensor | None = None  # the encoder's output
    memory_mask: Mask | None = None


Cache = LayerCache | None
SubLayer = Callable[[Tensor], Tensor]


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
        self.make_norms(norm)
        self.drop = nn.Dropout(dropout)

    def make_norms(self, norm: MakeNorm) -> None:
        self.attention_norm = norm()
        self.ffn_norm = norm()
        self.cross_norm = nn.Identity() if self.cross is None else norm()

    def forward(self, x: Tensor, context: AttentionContext, cache: Cache = None) -> Tensor:
        attend = partial(self.self_attend, context=context, cache=cache)
        x = self.residual(x, attend, self.attention_norm)
        if self.cross is not None:
            attend = partial(self.cross_attend, context=context, cache=cache)
            x = self.residual(x, attend, self.cross_norm)
        return self.residual(x, self.ffn, self.ffn_norm)

    def self_attend(self, x: Tensor, context: AttentionContext, cache: Cache) -> Tensor:
        own = cache and cache.self_attn
        return self.attention(x, mask=context.mask, rotate=context.rotate, cache=own)

    def cross_attend(self, x: Tensor, context: AttentionContext, cache: Cache) -> Tensor:
        own = cache and cache.cross_attn
        return self.cross(x, context.memory, mask=context.memory_mask, cache=own)


def blocks_of(model: nn.Module) -> list[nn.Module]:
    return [module for module in model.modules() if isinstance(module, Block)]


class PreNormBlock(Block):
    """Sub-layers read a normalized copy of the residual stream (arxiv.org/abs/2002.04745)."""

    def residual(self, x: Tensor, layer: SubLayer, norm: nn.Module) -> Tensor:
        return x + self.drop(layer(norm(x)))


class ModernBertBlock(PreNormBlock):
    """With no norm before the first attention, which reads embeddings that have one
    (arxiv.org/abs/2412.13663)."""

    def make_norms(self, norm: MakeNorm) -> None:
        super().make_norms(norm)
        if self.layer == 0:
            self.attention_norm = nn.Identity()


class PostNormBlock(Block):
    """The residual stream is normalized after each sub-layer (arxiv.org/abs/1706.03762)."""

    needs_final_norm = False

    def residual(self, x: Tensor, layer: SubLayer, norm: nn.Module) -> Tensor:
        return norm(x + self.drop(layer(x)))


class Olmo2Block(Block):
    """Only the outputs of sub-layers are normalized (arxiv.org/abs/2501.00656)."""

    def residual(self, x: Tensor, layer: SubLayer, norm: nn.Module) -> Tensor:
        return x + self.drop(norm(layer(x)))


class SandwichBlock(Block):
    """Pre-norm, with another norm on each sub-layer's output (arxiv.org/abs/2105.13290)."""

    def make_norms(self, norm: MakeNorm) -> None:
        super().make_norms(norm)
        self.attention_added_norm = norm()
        self.ffn_added_norm = norm()
        self.cross_added_norm = nn.Identity() if self.cross is None else norm()

    def forward(self, x: Tensor, context: AttentionContext, cache: Cache = None) -> Tensor:
        added = self.self_attend(self.attention_norm(x), context, cache)
        x = x + self.drop(self.attention_added_norm(added))
        if self.cross is not None:
            added = self.cross_attend(self.cross_norm(x), context, cache)
            x = x + self.drop(self.cross_added_norm(added))
        added = self.ffn(self.ffn_norm(x))
        return x + self.drop(self.ffn_added_norm(added))


class ParallelBlock(Block):
    """All sub-layers read the same input (arxiv.org/abs/2204.02311)."""

    def forward(self, x: Tensor, context: AttentionContext, cache: Cache = None) -> Tensor:
        added = self.self_attend(self.attention_norm(x), context, cache)
        added = added + self.ffn(self.ffn_norm(x))
        if self.cross is not None:
            added = added + self.cross_attend(self.cross_norm(x), context, cache)
        return x + self.drop(added)


class ParallelSharedBlock(ParallelBlock):
    """With one norm for all, as in GPT-J, Phi and Cohere."""

    def make_norms(self, norm: MakeNorm) -> None:
        self.attention_norm = self.ffn_norm = self.cross_norm = norm()


BLOCKS = Registry(
    pre=PreNormBlock,
    modernbert=ModernBertBlock,
    post=PostNormBlock,
    olmo2=Olmo2Block,
    sandwich=SandwichBlock,
    parallel=ParallelBlock,
    parallel_shared=ParallelSharedBlock,
)
