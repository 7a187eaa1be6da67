"""The state_dict of torch.nn.MultiheadAttention, as one of MultiHeadAttention here."""

from configs.errors import HubError

PARTS = ("query", "key", "value")


def from_torch(state):
    """Query, key and value are one matrix there, or three if their widths differ."""
    separate = [f"{part[0]}_proj_weight" for part in PARTS]
    weights = ["in_proj_weight"] if "in_proj_weight" in state else separate
    known = {"in_proj_weight", "in_proj_bias", "out_proj.weight", "out_proj.bias", *separate}
    if unknown := sorted(set(state) - known):
        raise HubError(f"unsupported tensor of torch.nn.MultiheadAttention: {unknown[0]}")
    if missing := [name for name in ("out_proj.weight", *weights) if name not in state]:
        raise HubError(f"not the state_dict of a torch.nn.MultiheadAttention: {missing[0]} is missing")
    packed = {"weight": state[weights[0]].chunk(3) if len(weights) == 1 else [state[n] for n in weights]}
    if "in_proj_bias" in state:
        packed["bias"] = state["in_proj_bias"].chunk(3)
    separated = {
        f"{p}.{end}": tensor for end, parts in packed.items() for p, tensor in zip(PARTS, parts, strict=True)
    }
    return separated | {f"out.{end}": state[f"out_proj.{end}"] for end in packed}
