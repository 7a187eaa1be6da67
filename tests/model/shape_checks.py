"""Which sizes the axes of a model may have, and which traced tensors break the promise of their names."""

from collections import defaultdict

from model.attention import MultiHeadLatentAttention
from model.embedding import Embedding

AXIS_ATTRS = {  # the attribute of a module that holds the size of an axis
    "H": "n_heads",
    "G": "n_groups",
    "D": "head_dim",
    "E": "v_head_dim",
    "R": "qk_rope_head_dim",
    "P": "qk_nope_head_dim",
    "L": "kv_lora_rank",
    "F": "d_ff",
}


def axis_sizes(model, **given):
    """The sizes that each axis may have in this model; B, T, S and N depend on the input and are given."""
    sizes = defaultdict(set, {axis: set(values) for axis, values in given.items()})
    sizes["1"], sizes["V"] = {1}, {model.head.map.out_features}
    for module in model.modules():
        if isinstance(module, Embedding):
            sizes["C"].add(module.table.embedding_dim)
        for axis, attribute in AXIS_ATTRS.items():
            if attribute in vars(module):
                sizes[axis].add(vars(module)[attribute])
        if isinstance(
            module, MultiHeadLatentAttention
        ):  # in the absorbed form, one head of latents serves all
            cached = module.kv_lora_rank + module.qk_rope_head_dim
            for axis, size in {"K": cached, "G": 1, "D": cached, "E": module.kv_lora_rank}.items():
                sizes[axis].add(size)
    sizes["W"] = {heads * width for heads in sizes["H"] for width in sizes["E"]}
    sizes["J"] = {T * heads // groups for T in sizes["T"] for heads in sizes["H"] for groups in sizes["G"]}
    return sizes


def violations(sightings, sizes):
    """A line for each tensor whose shape contradicts its name. Within one call, a letter has one size."""
    meaning, lines = defaultdict(dict), []
    for s in sightings:
        kept = len(s.axes) == len(s.shape)
        for axis, size in zip(s.axes, s.shape, strict=False):
            if axis == "B" and size == 1:
                continue
            kept &= size in sizes[axis] and meaning[s.call].setdefault(axis, size) == size
        if not kept:
            lines.append(f"{s.file}:{s.line} {s.name} is {s.shape}")
    return lines
