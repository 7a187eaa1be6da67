"""FSDP2: each process keeps a part of every weight, gradient and optimizer state. How Muon splits
its work is here, too."""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from model.block import blocks_of
from model.cuda import is_sharded
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


def whole(tensor: Any) -> Tensor:
    """The whole of a sharded tensor; all processes have to call this."""
    return tensor.full_tensor() if is_sharded(tensor) else tensor


def shard_like(tensor: Tensor, sharded: Any) -> Tensor:
    """Shard a whole tensor, which all processes have, in the same way as another."""
    if not is_sharded(sharded):
        return tensor
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(tensor, sharded.device_mesh, sharded.placements, src_data_rank=None)


def in_turn(
    function: Callable[[Tensor], Tensor], tensors: list[Tensor], dtype: torch.dtype
) -> list[Tensor]:
    """Let every process compute the function of one tensor per turn, and exchange the results in
    this dtype. With FSDP, each has only a part of every tensor, so they gather them first."""
    rank = dist.get_rank()
    size = dist.get_world_size()
    done: list[Tensor] = []
    mine = slice(rank, rank + 1)  # empty if the last turn has fewer tensors

    for start in range(0, len(tensors), size):
        turn = tensors[start : start + size]
        stacked = torch.stack([whole(tensor) for tensor in turn])
        results = torch.zeros_like(stacked, dtype=dtype)
        results[mine] = function(stacked[mine])
        dist.all_reduce(results)
        done += map(shard_like, results.to(stacked.dtype), turn)
    return done
