"""Sharding: with FSDP each process keeps a part of every tensor, and blocks gather theirs while they run."""

import math

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from data import disk
from model.block import blocks_of
from model.checkpoint.save import raw_bytes, safetensors_header


def shard(loss_module, precision):
    """Replaces the parameters of the module by DTensors: an optimizer has to be made after it."""
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard  # takes 0.3 s

    mesh = init_device_mesh(precision.device.type, (dist.get_world_size(),))
    dtype = None if precision.dtype is torch.float32 else precision.dtype
    policy = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32)
    for block in blocks_of(loss_module):
        fully_shard(block, mesh=mesh, mp_policy=policy)
    fully_shard(loss_module, mesh=mesh, mp_policy=policy)


def is_sharded(tensor):
    return hasattr(
        tensor, "placements"
    )  # it is a DTensor, whose class is not imported without need


def local(tensor):
    """The part of a tensor that this process has; a view."""
    return tensor.to_local() if is_sharded(tensor) else tensor


def whole(tensor):
    """The whole of a sharded tensor; all processes have to ask for it."""
    return tensor.full_tensor() if is_sharded(tensor) else tensor


def write_parts(path, tensors, rank, world_size):
    """Write the rows that this process has of each tensor into a safetensors file that all processes write;
    the main one writes what is not sharded. Returns the sum of the bytes."""
    header, places = safetensors_header(tensors)

    def parts():
        if rank == 0:
            yield 0, header
        for name, place in places.items():
            tensor = tensors[name].detach()
            if is_sharded(tensor):
                first = min(
                    rank * math.ceil(len(tensor) / world_size), len(tensor)
                )  # as torch.chunk does
                yield place + first * (tensor.nbytes // len(tensor)), raw_bytes(local(tensor).cpu())
            elif rank == 0:
                yield place, raw_bytes(tensor.cpu())

    return disk.write_parts(
        path, len(header) + sum(tensor.nbytes for tensor in tensors.values()), parts()
    )


def like(tensor, sharded):
    """A whole tensor that every process has, sharded in the same way as another."""
    if not is_sharded(sharded):
        return tensor
    from torch.distributed.tensor import distribute_tensor

    mesh, placements = sharded.device_mesh, sharded.placements
    return distribute_tensor(tensor.to(mesh.device_type), mesh, placements, src_data_rank=None)


def orthogonalize_in_turn(updates, params, orthogonalize):
    """Each process orthogonalizes one of world_size matrices at a time, and all exchange the results."""
    rank, world = dist.get_rank(), dist.get_world_size()
    for start in range(0, len(updates), world):
        group = range(start, min(start + world, len(updates)))
        matrices = [whole(rewrap(updates[i], params[i])) for i in group]
        results = matrices[0].new_zeros(len(group), *params[start].shape)
        if rank < len(group):
            results[rank] = orthogonalize(matrices[rank][None])[0]
        dist.all_reduce(results)
        for i, result in zip(group, results, strict=True):
            yield local(like(result, params[i]))


def rewrap(part, p):
    return type(p).from_local(part, p.device_mesh, p.placements, shape=p.shape, stride=p.stride())
