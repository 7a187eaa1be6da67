"""Cross-attention: the queries come from x, keys and values from a memory, which may have other
widths. Axes as in attention.py; here S are the positions of the memory."""

from functools import partial
from typing import Any

from torch import Tensor

from configs.registry import Count, Registry, build, check_value, parameters_of
from configs.schema import ModelConfig
from model.attend import Mask
from model.attention import Attention, MultiHeadAttention, merge
from model.cache import MemoryCache, Slots, State
from model.mla import ATTENTIONS


class CrossAttention(MultiHeadAttention):
    """Keys read the first channels of the memory, values the last, as many as `memory` says: all, if
    kdim and vdim are None (arxiv.org/abs/1702.04521)."""

    def new_cache(self, slots: Slots) -> State:
        return MemoryCache()

    def forward(  # type: ignore[override]
        self,
        x: Tensor,
        keys: Tensor,
        values: Tensor | None = None,
        *,
        mask: Mask,
        cache: State | None = None,
    ) -> Tensor:
        """Attend to `keys` and `values`, which default to `keys`. With a cache they are computed
        once."""
        q_BTW = self.query(x)
        q_BHTD = self.queries(q_BTW, None)
        heads = cache.buffers if cache else []
        if not heads:
            values = keys if values is None else values
            k_BSW = self.key(keys[..., : self.key_width])
            v_BSW = self.value(values[..., -self.value_width :])
            heads = self.keys_and_values(k_BSW, v_BSW, None, None)
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


def make_cross(config: ModelConfig, shared: dict, memory_width: int) -> Attention:
    """kdim and vdim, which no other attention has, are how much of the memory is read."""
    options: Any = dict(config.cross_attention or {})
    kdim, vdim = (
        check_value(f"model.cross_attention.{name}", options.pop(name, None), Count | None)
        for name in ("kdim", "vdim")
    )
    if max(kdim or 0, vdim or 0) > memory_width:
        reason = f"the widths of the memory are ({memory_width}, {memory_width})"
        raise ValueError(f"model.cross_attention.kdim is {kdim}, vdim {vdim}; {reason}")

    read = (kdim or memory_width, vdim or memory_width)
    own = shared | {"memory": read, "sliding_window": None}
    known = ATTENTIONS | CROSS_ATTENTIONS
    kinds = {name: kind for name, kind in known.items() if "memory" in parameters_of(kind)}
    made = build("model.cross_attention", kinds, options, own)
    if not isinstance(made, CrossAttention):
        name = type(made).__name__
        raise ValueError(f"{name} is no cross-attention: let it inherit model.cross.CrossAttention")
    return made
