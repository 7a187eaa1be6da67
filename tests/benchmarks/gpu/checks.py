"""The checks. Each yields figures; what is wrong is listed as `failed`."""

import os
import platform
import signal
import time
import warnings
from contextlib import nullcontext
from functools import partial
from itertools import count, product
from statistics import median
from unittest.mock import patch

import torch

from configs.compose import compose
from model.generate.decode import generate
from model.inference import prepare
from model.transformer import build_model
from tests.benchmarks._turns import take_turns
from tests.benchmarks.gpu.bench import saved
from tests.parts import names, randomize
from training import cost, distributed
from training.step import LossModule


def environment(bench):
    """What this machine is."""
    yield {"python": platform.python_version(), "torch": torch.__version__}
    if not bench.tiny:
        yield {"gpu": torch.cuda.get_device_name(), "cudnn": torch.backends.cudnn.version()}
        yield {"peak_flops": cost.peak_flops(bench.precision("bf16"))}


def expect(name, is_right):
    return {"failed": [] if is_right else [name]}


MASKS = [
    "model=llama model.attention.sliding_window=5",
    "model=llama model.layers=[window,nope] model.layer_kinds.window.attention.sliding_window=5",
    "model=gpt2 model.attention.logit_softcap=30",
    "model=gpt2 position=alibi",
]


def results(module, batch, precision):
    """{name: tensor} of a forward and a backward pass."""
    module.to(precision.device).zero_grad()
    batch = batch.to(precision.device)
    with precision.autocast():
        logits = module.model(**batch.inputs)
        loss = module(*batch)["loss"]
    loss.backward()
    gradients = [p.grad.flatten() for p in module.parameters() if p.grad is not None]
    found = {"logits": logits, "loss": loss, "gradient": torch.cat(gradients)}
    return {name: tensor.detach().double().cpu() for name, tensor in found.items()}


def greedy(model):
    """Ids that follow prompts of two lengths: through padding, and the cache."""
    if model.kind == "encoder":
        return []
    prompts = [[1, 2, 3], [4, 5, 6, 7, 8]]
    sources = prompts if model.kind == "encoder_decoder" else None
    model.eval()
    ids = list(generate(model, prompts, sources=sources, max_new_tokens=12))
    model.train()
    return ids


def numerics(bench):
    """Presets and masks on the device in float32 and bfloat16, beside the CPU in float32."""
    matmuls = torch.get_float32_matmul_precision()
    fp32 = bench.precision("fp32")
    on_cpu = fp32._replace(device=torch.device("cpu"))
    for overrides in [*(f"model={name}" for name in names("model")), *MASKS]:
        small = ["size=tiny", "model.context_length=32", "model.dropout=0"]
        config = compose([*overrides.split(), *small])
        model = randomize(build_model(config.model, bench.vocab_size), scale=0.1)
        module = LossModule(model, config.loss).train()
        batch = bench.batch(config, 4)
        torch.set_float32_matmul_precision("highest")  # no TF32
        expected = results(module, batch, on_cpu)
        text = greedy(module.model)
        exact = results(module, batch, fp32)
        yield expect(f"{overrides}: greedy text", greedy(module.model) == text)
        torch.set_float32_matmul_precision(matmuls)
        rough = results(module, batch, bench.precision("bf16"))
        for dtype, found, limit in [("fp32", exact, 1e-4), ("bf16", rough, 0.1)]:
            for name, tensor in expected.items():
                case = f"{overrides}: {dtype} {name}"
                distance = (found[name] - tensor).norm() / tensor.norm()
                yield {case: distance.item()} | expect(case, distance < limit)


def precisions(bench):
    """The same run in float32, in half precision, and with activation checkpointing."""
    cases = ["precision=fp32", "precision=bf16", "precision=fp16", "train.recompute=block"]
    losses = []
    for number, case in enumerate(cases):
        figures = bench.train(str(number), "train.micro_batch_size=8", case)
        losses.append(figures["val_loss"])
        yield {case: figures} | expect(case, abs(losses[-1] / losses[0] - 1) < 0.02)


def shared(bench):
    """DDP and FSDP of one process (by NCCL on a GPU) have the losses of plain training."""
    cases = {}
    for case in ("ddp fp32 adamw", "fsdp fp32 muon", "fsdp bf16 adamw"):
        parallel, dtype, optimizer = case.split()
        overrides = [f"precision={dtype}", f"optimizer={optimizer}", "size=small", "train.steps=10"]
        expected = bench.train(f"{parallel}-{dtype}", *overrides)["val_loss"]
        cases[case] = (expected, [*overrides, f"parallel={parallel}"])
    # as torchrun --nproc_per_node=1 starts train.py, which refuses to share with nobody
    os.environ |= {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    distributed.choose_parallel = lambda config, size: config.parallel
    for case, (expected, overrides) in cases.items():
        found = bench.train(case.replace(" ", "-"), *overrides)["val_loss"]
        torch.distributed.destroy_process_group()
        error = abs(found / expected - 1)
        yield {case: error} | expect(case, error < (1e-3 if "fp32" in case else 0.02))


def fitting(bench):
    """The search for a micro-batch in a fifth of the memory finds one that runs."""
    if not bench.tiny:
        torch.cuda.set_per_process_memory_fraction(0.2)
    figures = bench.train("fitted", "train.batch_size=128", "train.steps=5")
    yield figures | expect("not all rows fit", figures["micro_batch_size"] < 128)


def resume(bench, *overrides):
    """Is a run the same to the byte when it is repeated, or stopped and resumed?"""
    settings = ["size=small", "model.dropout=0.1", "train.steps=20", *overrides]
    yield bench.train("first", *settings)
    expected = saved("first")
    yield {"checkpoint_bytes": sum(map(len, expected.values()))}
    bench.train("again", *settings)
    bench.train("stopped", *settings, before={3: lambda: signal.raise_signal(signal.SIGTERM)})
    yield {"stopped_early": saved("stopped") != expected}
    bench.train("stopped", *settings, "resume=true")
    is_promised = bench.tiny or "deterministic=true" in overrides
    for what, name in (("repeats", "again"), ("resumes", "stopped")):
        is_equal = saved(name) == expected
        yield {what: is_equal} | expect(what, is_equal or not is_promised)


def training(bench, *overrides):
    """The speed of a run of GPT-2, and its memory beside what dry_run=true estimates."""
    figures = bench.train("run", *overrides)
    counted = cost.count(bench.config(*overrides), bench.precision("bf16"), bench.vocab_size)
    estimated = counted.memory(figures["micro_batch_size"], shards=1)
    parameters = sum(p.numel() for p in counted.model.parameters())
    yield {"parameters": parameters, "estimated_gb": estimated / 1e9} | figures


def compilation(bench):
    """A step of GPT-2 is two graphs, of the network and of a chunk of the loss, each compiled once,
    and waits for the GPU once."""
    from torch._dynamo.utils import counters

    mode = torch.cuda.set_sync_debug_mode
    warn_of_waits = {3: lambda: mode("warn"), 5: lambda: mode("default")}
    before = bench.pick(warn_of_waits, None)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        figures = bench.train("run", "compile=true", "train.micro_batch_size=16", before=before)
    waits = [w for w in caught if "called a synchronizing CUDA operation" in str(w.message)]
    graphs = counters["stats"]["unique_graphs"]
    breaks = list(counters["graph_break"])
    yield figures | {"graphs": graphs, "breaks": breaks, "waits_per_step": len(waits) / 2}
    yield expect("two graphs", graphs == 2 and not breaks)
    yield expect("one wait in a step", len(waits) == bench.pick(2, 0))


def decoding_speed(bench, rows):
    """Tokens per second of GPT-2 in bfloat16."""
    config = bench.config()
    model = build_model(config.model, bench.vocab_size).to(bench.device, torch.bfloat16)
    prepare(model.eval())
    prompts = bench.batch(config, rows).inputs["tokens"][:, :16].tolist()
    for _ in range(2):  # the first call plans its kernels
        start = time.perf_counter()
        n_steps = len(list(generate(model, prompts, max_new_tokens=bench.pick(128, 4))))
    return rows * n_steps / (time.perf_counter() - start)


def decoding(bench):
    """Its speed kernel by kernel, and as a CUDA graph where there is one."""
    never = patch("model.generate.decode.can_replay", lambda model: False)
    for rows, is_replayed in product(bench.pick((1, 64), (1, 2)), (False, True)):
        with nullcontext() if is_replayed else never:
            speed = decoding_speed(bench, rows)
        name = "graph" if is_replayed else "kernels"
        yield {f"{rows}_{name}": speed}


# functions of model/cuda.py, where they are called, and what undoes them
CHOICES = {
    "model.attend.attention_kernels": lambda bias: nullcontext(),
    "model.linear.joins_maps": lambda: False,
    "model.attend.prefers_matmuls_on_cuda": lambda q, bias: False,
}


def choices(bench):
    """Tokens per second with each of the choices on and off, in turn."""
    names = count()

    def measure(choice, is_on):
        with nullcontext() if is_on else patch(choice, CHOICES[choice]):
            if choice.endswith("prefers_matmuls_on_cuda"):
                return decoding_speed(bench, rows=1)
            figures = bench.train(f"choice-{next(names)}", "train.micro_batch_size=16")
            return figures["tokens_per_second"]

    for choice in CHOICES:
        found = take_turns([True, False], bench.pick(3, 1), partial(measure, choice))
        on = median(found[True])
        off = median(found[False])
        yield {choice: {"on": on, "off": off, "keep": on > off}}
