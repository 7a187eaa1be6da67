"""Which operations have tensors on the host and on `meta`."""

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


def devices(values):
    return {leaf.device.type for leaf in tree_leaves(values) if isinstance(leaf, torch.Tensor)}


class Crossings(TorchDispatchMode):
    """Counts copies to the device, and names the other operations that have tensors on both sides."""

    def __init__(self):
        super().__init__()
        self.copies = 0
        self.others = set()

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        output = operation(*args, **(kwargs or {}))
        inputs, outputs = devices((args, kwargs)), devices(output)
        is_copy = operation is torch.ops.aten._to_copy.default
        if is_copy and inputs == {"cpu"} and outputs == {"meta"}:
            self.copies += 1
        elif len(inputs | outputs) > 1:
            self.others.add(str(operation))
        return output
