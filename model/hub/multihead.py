"""torch.nn.MultiheadAttention: its state_dict becomes that of our attention."""

from configs.errors import HubError

PARTS = ("query", "key", "value")


def from_torch(state):
    """Queries, keys and values lie in one matrix there, or in three where their widths differ."""
    three = [f"{part[0]}_proj_weight" for part in PARTS]
    known = {"in_proj_weight", "in_proj_bias", "out_proj.weight", "out_proj.bias", *three}
    if odd := sorted(set(state) - known):
        raise HubError(f"{odd[0]} of torch.nn.MultiheadAttention has no place in our attention")
    packed = "in_proj_weight" in state
    if missing := [n for n in ("out_proj.weight", *([] if packed else three)) if n not in state]:
        raise HubError(
            f"this is not the state_dict of a torch.nn.MultiheadAttention: {missing[0]} is missing"
        )
    pieces = {"weight": state["in_proj_weight"].chunk(3) if packed else [state[name] for name in three]}
    if "in_proj_bias" in state:
        pieces["bias"] = state["in_proj_bias"].chunk(3)
    ours = {f"{p}.{end}": w for end, ws in pieces.items() for p, w in zip(PARTS, ws, strict=True)}
    return ours | {f"out.{end}": state[f"out_proj.{end}"] for end in pieces}
