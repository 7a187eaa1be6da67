"""What the checks share: configs without Hydra, models, training steps, batches and clocks."""

import gc
import re
import time
import warnings
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import torch
import yaml

from configs.registry import build, from_dict
from configs.schema import ModelConfig
from data.objectives import Batch
from model.precision import DTYPES, Precision
from model.transformer import build_model
from training.distributed import Dist
from training.optimizer import OPTIMIZERS
from training.sharding import shard
from training.step import LossModule, TrainStep

CONFIGS = Path(__file__).parents[3] / "configs"


class Bench(NamedTuple):
    device: torch.device
    tiny: bool = False  # only to see that every check runs
    vocab_size: int = 50_258  # of tokenizer=gpt2
    backend: str = "inductor"

    @property
    def on_gpu(self):
        return self.device.type == "cuda"

    def pick(self, full, tiny):
        return tiny if self.tiny else full

    def config(self, preset, size, **changes):
        small = {"n_layers": 1, "context_length": 16}
        return model_config(preset, self.pick(size, "tiny"), **changes | self.pick({}, small))

    def precision(self, dtype):
        return Precision(self.device, DTYPES[dtype], "for a benchmark")

    def model(self, config):
        torch.manual_seed(0)
        with self.device:
            return build_model(config, self.vocab_size)

    def compile(self, module):
        return torch.compile(module, backend=self.backend)

    def step(self, config, rows, *, optimizer="adamw", dtype="bf16", compiled=False, dist=None):
        """A TrainStep with micro-batches of so many rows."""
        release()
        loss_module, precision = LossModule(self.model(config)), self.precision(dtype)
        if dist and dist.parallel == "fsdp":
            shard(loss_module, precision)
        train_module = self.compile(loss_module) if compiled else None
        optimizer = make_optimizer(optimizer, loss_module.model)
        return TrainStep(loss_module, optimizer, precision, dist or Dist(), rows, 1.0, train_module)

    def batch(self, config, rows, seed=0):
        generator = torch.Generator().manual_seed(seed)
        shape = 3, rows, config.context_length
        tokens, targets, source = torch.randint(self.vocab_size, shape, generator=generator)
        inputs = {"tokens": tokens} | (
            {"source": source} if config.kind == "encoder_decoder" else {}
        )
        batch = Batch(inputs, targets, targets.numel())
        return batch.pinned() if self.on_gpu else batch  # as a run prefetches it


def read_yaml(*path):
    return yaml.safe_load(CONFIGS.joinpath(*path).with_suffix(".yaml").read_text())


def part(group, name, **changes):
    """What a YAML file sets, with what it inherits."""
    options = read_yaml(group, name)
    for base in reversed(options.pop("defaults", [])):
        options = options if base == "_self_" else part(group, base.partition("@")[0]) | options
    for key, value in options.items():  # PyYAML takes 1e-5 for a string
        if isinstance(value, str) and re.fullmatch(r"[\d.]+e-?\d+", value):
            options[key] = float(value)
    return options | changes


def model_config(preset, size, **changes):
    """The ModelConfig of model=preset size=size, without dropout."""
    model = read_yaml("train")["model"] | read_yaml("size", size)
    apply_preset(model, preset)
    return from_dict(ModelConfig, model | {"dropout": 0.0} | changes, "model.")


def apply_preset(model, preset):
    file = read_yaml("model", preset)
    for default in file["defaults"]:
        if isinstance(default, dict):
            [(override, name)] = default.items()  # such as {"override /norm": "rmsnorm"}
            group, _, place = override.removeprefix("override /").partition("@model.")
            if group != "optimizer":
                model[place or group] = part(group, name)
        elif default != "_self_":
            apply_preset(model, default)
    for key, value in file["model"].items():
        model[key] = model[key] | value if isinstance(value, dict) else value


def make_optimizer(name, model):
    return build("optimizer", OPTIMIZERS, part("optimizer", name), {"model": model})


@torch.no_grad()
def randomize(model):
    """No weight stays zero or one, which would hide an error."""
    generator = torch.Generator().manual_seed(1)
    for p in model.parameters():
        p += 0.03 * torch.randn(p.shape, generator=generator).to(p.device)
    return model


def release():
    """Forget compiled code, and return memory that nothing holds."""
    torch._dynamo.reset()
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def peak_gb():
    return torch.cuda.max_memory_allocated() / 1e9 if torch.cuda.is_available() else None


def seconds(function, times, warmup=2):
    """The mean time of a call."""
    for i in range(warmup + times):
        if i == warmup:
            synchronize()
            start = time.perf_counter()
        function()
    synchronize()
    return (time.perf_counter() - start) / times


def synchronize():
    if torch.cuda.is_available():
        torch.cuda.synchronize()


@contextmanager
def counting_syncs():
    """A list that afterwards has an entry for each time that the host has waited for the GPU."""
    waits = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            yield waits
        finally:
            torch.cuda.set_sync_debug_mode("default")
    waits += [w for w in caught if "called a synchronizing CUDA operation" in str(w.message)]
