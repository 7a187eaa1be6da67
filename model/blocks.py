"""Blocks with other norm placements than before each sub-layer."""

from torch import Tensor, nn

from model.block import BLOCKS, AttentionContext, Block, SubLayer
from model.norm import MakeNorm


class ModernBertBlock(Block):
    """Pre-norm without a norm before the first attention, which reads normalized embeddings
    (arxiv.org/abs/2412.13663)."""

    def make_norms(self, norm: MakeNorm) -> None:
        super().make_norms(norm)
        if self.layer == 0:
            self.attention_norm = nn.Identity()


class PostNormBlock(Block):
    """The residual stream is normalized after each sub-layer (arxiv.org/abs/1706.03762)."""

    needs_final_norm = False

    def residual(self, x: Tensor, sublayer: SubLayer, norm: nn.Module) -> Tensor:
        sum_BTC = x + self.drop(sublayer(x))
        return norm(sum_BTC)


class Olmo2Block(Block):
    """Only the outputs of sub-layers are normalized (arxiv.org/abs/2501.00656)."""

    def residual(self, x: Tensor, sublayer: SubLayer, norm: nn.Module) -> Tensor:
        normed_BTC = norm(sublayer(x))
        return x + self.drop(normed_BTC)


class SandwichBlock(Block):
    """Pre-norm, with another norm on each sub-layer's output (arxiv.org/abs/2105.13290)."""

    def make_norms(self, norm: MakeNorm) -> None:
        super().make_norms(norm)
        self.attention_added_norm = norm()
        self.ffn_added_norm = norm()
        self.cross_added_norm = nn.Identity() if self.cross is None else norm()

    def self_attend(self, x: Tensor, context: AttentionContext) -> Tensor:
        return self.attention_added_norm(super().self_attend(x, context))

    def cross_attend(self, x: Tensor, context: AttentionContext) -> Tensor:
        return self.cross_added_norm(super().cross_attend(x, context))

    def feed_forward(self, x: Tensor, context: AttentionContext) -> Tensor:
        return self.ffn_added_norm(super().feed_forward(x, context))


class ParallelBlock(Block):
    """All sub-layers read the same input (arxiv.org/abs/2204.02311)."""

    def forward(self, x: Tensor, context: AttentionContext) -> Tensor:
        added_BTC = self.self_attend(self.attention_norm(x), context)
        added_BTC = added_BTC + self.feed_forward(self.ffn_norm(x), context)
        if self.cross is not None:
            added_BTC = added_BTC + self.cross_attend(self.cross_norm(x), context)
        x = x + self.drop(added_BTC)
        return x


class ParallelSharedBlock(ParallelBlock):
    """All sub-layers read one norm of the same input, as in GPT-J, Phi and Cohere."""

    def make_norms(self, norm: MakeNorm) -> None:
        self.attention_norm = self.ffn_norm = self.cross_norm = norm()


BLOCKS["modernbert"] = ModernBertBlock
BLOCKS["post"] = PostNormBlock
BLOCKS["olmo2"] = Olmo2Block
BLOCKS["sandwich"] = SandwichBlock
BLOCKS["parallel"] = ParallelBlock
BLOCKS["parallel_shared"] = ParallelSharedBlock
