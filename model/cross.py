"""Cross-attention: the queries come from x, keys and values from a memory, which may have other
widths. Axes as in attention.py; here S are the positions of the memory."""

from functools import partial
from typing import Literal

from torch import Tensor

from configs.registry import Count, Positive, Registry, build, parameters_of
from configs.schema import ModelConfig
from model.attend import Mask
from model.attention import Attention, MultiHeadAttention, merge
from model.cache import State
from model.mla import ATTENTIONS
from model.norm import MakeNorm, RMSNorm
from model.position import Rotate


class CrossAttention(MultiHeadAttention):
    """`memory` has the widths of the inputs of keys and values. Keys read the first kdim channels of
    theirs, values the last vdim (None: all), as in arxiv.org/abs/1702.04521. The other options are
    those of MultiHeadAttention."""

    def __init__(
        self,
        d_model: int,
        n_heads: int,
        memory: tuple[int, int],
        queries_per_kv: Count | None = 1,
        kdim: Count | None = None,
        vdim: Count | None = None,
        head_dim: Count | None = None,
        v_head_dim: Count | None = None,
        bias: bool = False,
        o_bias: bool = False,
        qk_norm: Literal["none", "head", "full"] = "none",
        logit_softcap: Positive | None = None,
        scale: Positive | None = None,
        norm: MakeNorm = RMSNorm,
        dropout: float = 0.0,
    ):
        if (kdim or 0) > memory[0] or (vdim or 0) > memory[1]:
            raise ValueError(f"kdim is {kdim}, vdim {vdim}; the widths of the memory are {memory}")

        self.key_width = kdim or memory[0]
        self.value_width = vdim or memory[1]
        super().__init__(
            d_model,
            n_heads,
            (self.key_width, self.value_width),
            queries_per_kv,
            head_dim,
            v_head_dim,
            bias,
            o_bias,
            qk_norm,
            logit_softcap,
            scale=scale,
            norm=norm,
            dropout=dropout,
        )

    def forward(  # type: ignore[override]
        self,
        x: Tensor,
        keys: Tensor,
        values: Tensor | None = None,
        *,
        mask: Mask,
        rotate: Rotate | None = None,
        cache: State | None = None,
    ) -> Tensor:
        """Attend to `keys` and `values`, which default to `keys`. With a cache they are computed
        once."""
        q_BTW = self.query(x)
        q_BHTD = self.queries(q_BTW, rotate)
        heads = cache.buffers if cache else []
        if not heads:
            values = keys if values is None else values
            k_BSW = self.key(keys[..., : self.key_width])
            v_BSW = self.value(values[..., -self.value_width :])
            heads = self.keys_and_values(k_BSW, v_BSW, rotate, None)
            if cache is not None:
                cache.write(*heads)

        k_BGSD, v_BGSE = heads
        merged_BTW = merge(self.attend(q_BHTD, k_BGSD, v_BGSE, mask))
        y_BTC = self.out(merged_BTW)
        return y_BTC


CROSS_ATTENTIONS = Registry(
    mha=partial(CrossAttention, queries_per_kv=1),
    gqa=CrossAttention,
    mqa=partial(CrossAttention, queries_per_kv=None),
)


def make_cross(config: ModelConfig, sizes: dict, memory_width: int) -> Attention:
    widths = sizes | {"memory": (memory_width, memory_width)}
    own = {name: kind for name, kind in ATTENTIONS.items() if "memory" in parameters_of(kind)}
    made = build("model.cross_attention", own | CROSS_ATTENTIONS, config.cross_attention, widths)
    if isinstance(made, MultiHeadAttention) and not isinstance(made, CrossAttention):
        name = type(made).__name__
        raise ValueError(f"{name} reads no memory: let it inherit model.cross.CrossAttention")
    return made
