"""Checks that tensors have the shapes their names promise."""

from collections import defaultdict
from itertools import product

from model.attention import MultiHeadLatentAttention
from model.embedding import Embedding

# the attribute in which a module keeps the size of an axis
AXIS_ATTRS = {
    "H": "n_heads",
    "G": "n_groups",
    "D": "head_dim",
    "E": "v_head_dim",
    "R": "rotary_dim",
    "P": "qk_nope_head_dim",
    "L": "kv_lora_rank",
    "F": "d_ff",
}


def axis_sizes(model, **given):
    """The sizes that each axis may have in this model; the input gives those of B, T, S and N."""
    sizes = defaultdict(set, {axis: set(values) for axis, values in given.items()})
    sizes["1"] = {1}
    sizes["V"] = {model.head.map.out_features}
    for module in model.modules():
        if isinstance(module, Embedding):
            sizes["C"].add(module.table.embedding_dim)
        for axis, attribute in AXIS_ATTRS.items():
            if attribute in vars(module):
                sizes[axis].add(vars(module)[attribute])
        if isinstance(module, MultiHeadLatentAttention):  # the absorbed form attends to the latents
            cached = module.kv_lora_rank + module.rotary_dim
            sizes["K"].add(cached)
            sizes["D"].add(cached)
            sizes["E"].add(module.kv_lora_rank)
            sizes["G"].add(1)
    sizes["W"] = {heads * width for heads in sizes["H"] for width in sizes["E"]}
    for T, heads, groups in product(sizes["T"], sizes["H"], sizes["G"]):
        sizes["J"].add(T * heads // groups)
    return sizes


def violations(records, sizes):
    """The tensors whose shape differs from their name's; within one call a letter has one size."""
    sizes_in_call = defaultdict(dict)
    messages = []
    for record in records:
        own = sizes_in_call[record.call]
        holds = len(record.axes) == record.tensor.ndim
        for axis, size in zip(record.axes, record.tensor.shape, strict=False):
            if (axis, size) != ("B", 1):
                holds &= size in sizes[axis] and own.setdefault(axis, size) == size
        if not holds:
            messages.append(f"{record.place} {record.name} is {tuple(record.tensor.shape)}")
    return messages
