"""torch.compile, and activation checkpointing: blocks that run again for the backward pass."""

from collections import UserDict
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from configs.cli import warn
from configs.schema import Config
from model.block import AttentionContext, blocks_of
from training.distributed import World
from training.step import LossModule
from training.trials import without_traces

MANY_BLOCKS = 36  # compiling all of them as one graph would take minutes


def compile_module(module: LossModule, config: Config, world: World) -> None:
    """Compile the network as one graph, and a chunk of the loss as another, for any number of
    chunks. The blocks share one graph in a deep network, and if activation checkpointing or the
    hooks of FSDP run between them."""
    compile = partial(compiled, is_optional=config.compile == "auto", failures=[])
    blocks = blocks_of(module)
    if config.train.recompute == "block" or world.parallel == "fsdp" or len(blocks) >= MANY_BLOCKS:
        for block in blocks:
            block.forward = compile(block.forward, block)
    else:
        network = module.model
        network.hidden = compile(network.hidden, network)
    module.chunk_gradients = compile(module.chunk_gradients, module)


def compiled(eager: Callable, owner: nn.Module, is_optional: bool, failures: list) -> Callable:
    """The function of a module, compiled by torch.compile, but only in training: each new length of
    a text would be compiled again. If that is optional, it runs eagerly after the first failure."""
    from torch._dynamo.exc import TorchDynamoException

    fast = torch.compile(eager)

    def function(*inputs: Any, **options: Any) -> Any:
        if owner.training and torch.is_grad_enabled() and not failures:
            try:
                return fast(*inputs, **options)
            except TorchDynamoException as error:
                if not is_optional:
                    raise

                # the first line may only name the backend
                reason = " ".join(str(error).splitlines()[:2])
                warn(f"training continues uncompiled, and slower: torch.compile failed ({reason})")
                failures.append(error)
        return eager(*inputs, **options)

    return function


def recompute_blocks(model: nn.Module) -> None:
    """Let blocks keep only their inputs for the backward pass, which runs them again."""
    for block in blocks_of(model):
        block.forward = recomputed(block)


def recomputed(block: nn.Module) -> Callable:
    """A forward that runs again for the backward pass, where it reads the buffers, and what earlier
    layers share, as it found them first."""
    forward = block.forward

    def one_pass(x: Tensor, context: AttentionContext, shared: dict) -> Any:
        """Returns (the output, what is shared after it). `shared` stays as it is for the other
        pass."""
        own = UserDict(shared)  # not a dict: see model/stack.py
        return forward(x, context._replace(shared=own)), own

    def both_passes(x: Tensor, context: AttentionContext) -> Tensor:
        if context.states:  # in decoding
            return forward(x, context)
        options: Any = {"use_reentrant": False}
        if not torch.compiler.is_compiling():  # a compiled graph leaves no traces
            options["context_fn"] = lambda: (nullcontext(), without_traces(block))
        shared = UserDict() if context.shared is None else context.shared
        # a copy: later layers change it before the second pass
        y, after = checkpoint(one_pass, x, context, dict(shared), **options)
        shared.update(after)
        return y

    return both_passes
