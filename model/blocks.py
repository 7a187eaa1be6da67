"""Blocks with norms at other places than before each sub-layer."""

from torch import Tensor, nn

from model.block import AttentionContext, Block, PreNormBlock, States, SubLayer
from model.norm import MakeNorm


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

    def forward(self, x: Tensor, context: AttentionContext, states: States = None) -> Tensor:
        added = self.self_attend(self.attention_norm(x), context, states)
        x = x + self.drop(self.attention_added_norm(added))
        if self.cross is not None:
            added = self.cross_attend(self.cross_norm(x), context, states)
            x = x + self.drop(self.cross_added_norm(added))
        added = self.feed_forward(self.ffn_norm(x), context, states)
        return x + self.drop(self.ffn_added_norm(added))


class ParallelBlock(Block):
    """All sub-layers read the same input (arxiv.org/abs/2204.02311)."""

    def forward(self, x: Tensor, context: AttentionContext, states: States = None) -> Tensor:
        added = self.self_attend(self.attention_norm(x), context, states)
        added = added + self.feed_forward(self.ffn_norm(x), context, states)
        if self.cross is not None:
            added = added + self.cross_attend(self.cross_norm(x), context, states)
        return x + self.drop(added)


class ParallelSharedBlock(ParallelBlock):
    """With one norm for all, as in GPT-J, Phi and Cohere."""

    def make_norms(self, norm: MakeNorm) -> None:
        self.attention_norm = self.ffn_norm = self.cross_norm = norm()
