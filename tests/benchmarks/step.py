"""A training step beside those of a plain module, transformers, and if installed litgpt and x-transformers.

OMP_NUM_THREADS=2 python -m tests.benchmarks.step --compile

In turn in one process, with the same sizes, precision and optimizer: medians, and ratios to ours.
"""

import argparse
import time
from importlib.util import find_spec
from statistics import median

import torch
import torch.nn as nn
import torch.nn.functional as F
import transformers as hf

from configs.compose import compose
from configs.registry import build
from data.objectives import Batch
from model.precision import Precision, tune_malloc
from model.transformer import build_model
from training.distributed import Dist
from training.optimizer import OPTIMIZERS
from training.step import LossModule, TrainStep

# overrides, rows, layers, heads, width, length, vocabulary; the default run has no peer
GPT2 = ["model=gpt2", "optimizer=adamw", "model.dropout=0"]
CASES = {
    "small": (GPT2, 12, 4, 4, 128, 64, 65),
    "medium": (GPT2, 16, 6, 6, 384, 256, 65),
    "default": ([], 16, 2, 4, 128, 128, 6144),
}


class PlainBlock(nn.Module):
    def __init__(self, width, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x, mask):
        packed = self.qkv(self.norm1(x)).unflatten(-1, (3, self.n_heads, -1))
        q, k, v = packed.permute(2, 0, 3, 1, 4)
        weights = (q * q.shape[-1] ** -0.5 @ k.mT + mask.to(q.dtype)).softmax(-1)
        x = x + self.out((weights @ v).transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))


class Plain(nn.Module):
    """GPT-2 as one would write it for speed: packed projections, attention by matmuls, tied weights."""

    def __init__(self, n_layers, n_heads, width, length, vocab_size):
        super().__init__()
        self.table, self.position = nn.Embedding(vocab_size, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(PlainBlock(width, n_heads) for _ in range(n_layers))
        self.norm = nn.LayerNorm(width)
        self.register_buffer("mask", torch.full((length, length), float("-inf")).triu(1))
        nn.init.normal_(self.table.weight, std=0.02)

    def forward(self, text):
        x = self.table(text) + self.position.weight
        for block in self.blocks:
            x = block(x, self.mask)
        return F.linear(self.norm(x), self.table.weight)


def hf_model(n_layers, n_heads, width, length, vocab_size):
    sizes = {"n_layer": n_layers, "n_head": n_heads, "n_embd": width, "n_positions": length}
    dropout = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
    options = {"bos_token_id": None, "eos_token_id": None, "use_cache": False}
    return hf.GPT2LMHeadModel(hf.GPT2Config(**sizes, **dropout, **options, vocab_size=vocab_size))


def litgpt_model(n_layers, n_heads, width, length, vocab_size):
    from litgpt import GPT, Config

    kinds = {
        "norm_class_name": "LayerNorm",
        "mlp_class_name": "GptNeoxMLP",
        "gelu_approximate": "tanh",
    }
    sizes = {
        "n_layer": n_layers,
        "n_head": n_heads,
        "n_embd": width,
        "intermediate_size": 4 * width,
    }
    sizes |= {"block_size": length, "vocab_size": vocab_size, "padded_vocab_size": vocab_size}
    return GPT(Config(name="gpt2", bias=True, parallel_residual=False, **kinds, **sizes))


def x_transformers_model(n_layers, n_heads, width, length, vocab_size):
    from x_transformers import Decoder, TransformerWrapper

    layers = Decoder(
        dim=width, depth=n_layers, heads=n_heads, attn_dim_head=width // n_heads, attn_flash=True
    )
    return TransformerWrapper(num_tokens=vocab_size, max_seq_len=length, attn_layers=layers)


PEERS = {"transformers": hf_model, "litgpt": litgpt_model, "x_transformers": x_transformers_model}


def plain_step(module, text, targets, dtype):
    """A step as in nanoGPT: forward, backward, clipping, fused AdamW."""
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-3, fused=True)

    def step():
        with torch.autocast("cpu", torch.bfloat16, enabled=dtype == "bf16"):
            output = module(text)
            logits = output if torch.is_tensor(output) else output.logits
            loss = F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(module.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return loss.item()

    return step


def our_step(overrides, sizes, text, targets, compiled=False):
    names = ("n_layers", "n_heads", "d_model", "context_length")
    config = compose(
        overrides + [f"model.{name}={size}" for name, size in zip(names, sizes, strict=False)]
    )
    module = LossModule(build_model(config.model, sizes[-1]))
    optimizer = build("optimizer", OPTIMIZERS, config.optimizer, {"model": module.model})
    precision = Precision(torch.device("cpu"), torch.bfloat16, "")
    train_module = torch.compile(module) if compiled else None
    step = TrainStep(module, optimizer, precision, Dist(), len(text), 1.0, train_module)
    batch = Batch({"tokens": text}, targets, targets.numel())
    return lambda: step(batch, 1.0).loss


def candidates(case, compiled):
    overrides, rows, *sizes = CASES[case]
    text = torch.randint(
        sizes[-1], (rows, sizes[-2] + 1), generator=torch.Generator().manual_seed(0)
    )
    data = text[:, :-1], text[:, 1:].contiguous()
    yield "ours", our_step(overrides, sizes, *data)
    if compiled:
        yield "ours, compiled", our_step(overrides, sizes, *data, compiled=True)
    if overrides:
        yield "plain", plain_step(Plain(*sizes), *data, "bf16")
        yield "plain, fp32", plain_step(Plain(*sizes), *data, "fp32")
        if compiled:
            yield "plain, compiled", plain_step(torch.compile(Plain(*sizes)), *data, "bf16")
        for name in filter(find_spec, PEERS):
            yield name, plain_step(PEERS[name](*sizes), *data, "bf16")
            if compiled and name == "litgpt":
                yield (
                    f"{name}, compiled",
                    plain_step(torch.compile(PEERS[name](*sizes)), *data, "bf16"),
                )


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--compile", action="store_true")
    args = parser.parse_args()
    tune_malloc()
    for case in args.cases:
        steps = dict(candidates(case, args.compile))
        seconds = {name: [] for name in steps}
        for i in range(args.rounds + 1):
            for name in list(steps)[:: 1 if i % 2 else -1]:
                start = time.perf_counter()
                for _ in range(5):
                    steps[name]()
                seconds[name].append((time.perf_counter() - start) / 5)
        for name, column in seconds.items():
            column, ours = column[1:], seconds["ours"][1:]  # the first round warms up
            ratios = [other / own for other, own in zip(column, ours, strict=True)]
            spread = f"{median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
            print(f"{case:8} {name:18} {1e3 * median(column):8.1f} ms  {spread}", flush=True)


if __name__ == "__main__":
    main()
