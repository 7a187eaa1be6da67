"""A training step beside that of a plain module and, if installed, those of other libraries.

    OMP_NUM_THREADS=2 python -m tests.benchmarks.step --compile

In turn in one process, with the same sizes, precision and optimizer: medians, and ratios to ours.
"""

import argparse
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from statistics import median
from timeit import timeit

import torch
import torch.nn as nn
import torch.nn.functional as F

from configs.compose import compose
from data.batch import Batch
from model.transformer import build_model
from tests.benchmarks._turns import ratios, spread, take_turns
from train import update
from training import distributed
from training.compile import compile_module, recompute_blocks
from training.optimizer import build_optimizers
from training.run import Run, TrainState
from training.step import LossModule

GPT2 = ["model=gpt2", "optimizer=adamw", "model.dropout=0"]
CASES = {  # overrides, rows, layers, heads, width, length, vocabulary; the default run has no peer
    "small": (GPT2, 12, 4, 4, 128, 64, 65),
    "medium": (GPT2, 16, 6, 6, 384, 256, 65),
    "default": ([], 16, 2, 4, 128, 128, 6144),
}
ROUNDS = 10


def model_sizes(n_layers, n_heads, width, length):
    """As overrides."""
    return [
        f"model.n_layers={n_layers}",
        f"model.n_heads={n_heads}",
        f"model.d_model={width}",
        f"model.context_length={length}",
    ]


class Ours:
    """The steps of train.py, without its folder and its data."""

    def __init__(self, config, vocab_size, data=None):
        world = distributed.start(config)
        model = build_model(config.model, vocab_size, config.seed).to(world.device)
        module = LossModule(model, config.loss)
        if world.compiles:
            compile_module(module, config, world)
        if config.train.recompute == "block":
            recompute_blocks(model)
        optimizers = build_optimizers(config.optimizer, model)
        state = TrainState(micro_batch_size=config.train.batch_size)
        self.run = Run(config, data, world, module, optimizers, None, state)

    def __call__(self, batch):
        """The loss of a batch, before its step."""
        return update(self.run, self.run.loss_module, batch, clock=0.0).losses["loss"]


def random_batch(config, vocab_size, rows, seed=0):
    generator = torch.Generator().manual_seed(seed)
    text = torch.randint(vocab_size, (rows, config.context_length + 1), generator=generator)
    inputs = {"tokens": text[:, :-1]}
    if config.kind == "encoder_decoder":
        inputs["source"] = text.flip(1)[:, 1:]
    targets = text[:, 1:].contiguous()
    return Batch(inputs, targets, targets.numel())


class PlainBlock(nn.Module):
    def __init__(self, width, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.norm1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x, mask):
        packed = self.qkv(self.norm1(x)).unflatten(-1, (3, self.n_heads, -1))
        q, k, v = packed.permute(2, 0, 3, 1, 4)
        scores = q * q.shape[-1] ** -0.5 @ k.mT + mask.to(q.dtype)
        y = scores.softmax(-1) @ v
        x = x + self.out(y.transpose(1, 2).flatten(2))
        hidden = F.gelu(self.up(self.norm2(x)), approximate="tanh")
        return x + self.down(hidden)


class Plain(nn.Module):
    """GPT-2 as written for speed: packed projections, attention by matmuls, tied weights."""

    def __init__(self, n_layers, n_heads, width, length, vocab_size):
        super().__init__()
        self.table = nn.Embedding(vocab_size, width)
        self.position = nn.Embedding(length, width)
        self.blocks = nn.ModuleList(PlainBlock(width, n_heads) for _ in range(n_layers))
        self.norm = nn.LayerNorm(width)
        self.register_buffer("mask", torch.full((length, length), float("-inf")).triu(1))
        nn.init.normal_(self.table.weight, std=0.02)

    def forward(self, text):
        x = self.table(text) + self.position.weight
        for block in self.blocks:
            x = block(x, self.mask)
        return F.linear(self.norm(x), self.table.weight)


def both_models(n_layers, n_heads, width, length, vocab_size):
    """Our GPT-2 and that of transformers, with the same weights."""
    from model.hub.convert import first_match, to_transformers
    from model.hub.spec import spec_from_model

    config = compose([*GPT2, *model_sizes(n_layers, n_heads, width, length)]).model
    model = build_model(config, vocab_size)
    ids = {"vocab_size": vocab_size, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    match = first_match(spec_from_model(model), ids, "gpt2")
    return model, to_transformers(model, match)


def hf_model(*sizes):
    _, model = both_models(*sizes)
    model.config.use_cache = False
    return model.train()


def litgpt_model(n_layers, n_heads, width, length, vocab_size):
    from litgpt import GPT, Config

    config = Config(
        n_layer=n_layers,
        n_head=n_heads,
        n_embd=width,
        block_size=length,
        vocab_size=vocab_size,
        padded_vocab_size=vocab_size,
        parallel_residual=False,
        gelu_approximate="tanh",
    )
    return GPT(config)


def x_transformers_model(n_layers, n_heads, width, length, vocab_size):
    from x_transformers import Decoder, TransformerWrapper

    layers = Decoder(
        dim=width, depth=n_layers, heads=n_heads, attn_dim_head=width // n_heads, attn_flash=True
    )
    return TransformerWrapper(num_tokens=vocab_size, max_seq_len=length, attn_layers=layers)


PEERS = {"transformers": hf_model, "litgpt": litgpt_model, "x_transformers": x_transformers_model}


def plain_step(module, batch):
    """A step as in nanoGPT: forward, backward, clipping, fused AdamW."""
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-3, fused=True)

    def step():
        with torch.autocast("cpu", torch.bfloat16):
            output = module(batch.inputs["tokens"])
            logits = getattr(output, "logits", output)
            loss = F.cross_entropy(logits.flatten(0, 1).float(), batch.targets.flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(module.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return loss.item()

    return step


def candidates(case, compiled):
    """(name, step) of each."""
    overrides, rows, *sizes, vocab_size = CASES[case]
    settings = [*overrides, *model_sizes(*sizes), "device=cpu", "precision=bf16"]
    config = compose([*settings, f"train.batch_size={rows}"])
    batch = random_batch(config.model, vocab_size, rows)
    yield "ours", partial(Ours(config, vocab_size), batch)
    if compiled:
        config = replace(config, compile=True)
        yield "ours, compiled", partial(Ours(config, vocab_size), batch)
    if not overrides:
        return
    for name in ("plain", *filter(find_spec, PEERS)):
        make = PEERS.get(name, Plain)
        yield name, plain_step(make(*sizes, vocab_size), batch)
        if compiled and name in ("plain", "litgpt"):
            module = torch.compile(make(*sizes, vocab_size))
            yield f"{name}, compiled", plain_step(module, batch)


def measure(step):
    return timeit(step, number=5) / 5


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--compile", action="store_true")
    args = parser.parse_args()
    for case in CASES:
        steps = dict(candidates(case, args.compile))
        found = take_turns(steps.values(), ROUNDS + 1, measure)
        _, *ours = found[steps["ours"]]  # the first round warms up
        for name, step in steps.items():
            _, *seconds = found[step]
            milliseconds = f"{1e3 * median(seconds):8.1f} ms"
            print(f"{case:8} {name:18} {milliseconds}  {spread(ratios(seconds, ours))}", flush=True)


if __name__ == "__main__":
    main()
