"""The state_dict of torch.nn.MultiheadAttention, as one of MultiHeadAttention here."""

from torch import Tensor

PARTS = ("query", "key", "value")
NAMES = {f"{part[0]}_proj_weight": f"{part}.weight" for part in PARTS}
NAMES |= {f"out_proj.{end}": f"out.{end}" for end in ("weight", "bias")}


def from_torch(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Query, key and value are one matrix there, or three if their widths differ."""
    ours: dict[str, Tensor] = {}
    for name, tensor in state.items():
        if name.startswith("in_proj_"):
            end = name.removeprefix("in_proj_")
            ours |= zip((f"{part}.{end}" for part in PARTS), tensor.chunk(3), strict=True)
        else:
            ours[NAMES.get(name, name)] = tensor  # an unknown one is refused by load_state_dict
    return ours
