"""FSDP2: each process keeps a part of every weight, gradient and optimizer state."""

import torch
from torch import nn

from model.block import blocks_of
from training.distributed import World


def shard(loss_module: nn.Module, world: World) -> None:
    """Shard a model; blocks gather their tensors while they run. The parameters become DTensors, so
    the optimizers have to be built afterwards."""
    from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    mesh = init_device_mesh(world.device.type, (world.size,))
    policy = MixedPrecisionPolicy(world.precision.dtype, reduce_dtype=torch.float32)
    weights = loss_module.state_dict()
    for module in (*blocks_of(loss_module), loss_module):
        fully_shard(module, mesh=mesh, mp_policy=policy)
    loss_module.to_empty(device=world.device)
    # hand out the weights of the main process
    options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
    set_model_state_dict(loss_module, weights if world.is_main else {}, options=options)
