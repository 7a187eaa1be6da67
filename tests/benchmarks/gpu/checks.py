"""The checks. Each yields figures; what is wrong is listed as `failed`."""

import os
import platform
import signal
import warnings
from contextlib import contextmanager

import torch

from configs.compose import compose
from model.generate.decode import generate
from model.generate.sampling import Sampling
from model.transformer import build_model
from tests.benchmarks.gpu.bench import saved, seconds, synchronize
from tests.parts import names
from training import cost, distributed
from training.step import LossModule


def environment(bench):
    """What this machine is, and how close to its published peak it gets."""
    yield {"python": platform.python_version(), "torch": torch.__version__}
    if not bench.tiny:
        yield {"gpu": torch.cuda.get_device_name(), "cuda": torch.version.cuda}
        yield {"cudnn": torch.backends.cudnn.version()}
        yield {"peak_flops": bench.precision("bf16").peak_flops()}
    n = bench.pick(8192, 128)
    a, b = torch.randn(2, n, n, device=bench.device, dtype=torch.bfloat16)
    yield {"bf16_tflops": 2 * n**3 / seconds(lambda: a @ b, times=10) / 1e12}
    x = torch.zeros(bench.pick(1 << 30, 1 << 20), dtype=torch.uint8, device=bench.device)
    y = torch.empty_like(x)
    yield {"copy_gb_per_second": 2 * x.nbytes / seconds(lambda: y.copy_(x), times=10) / 1e9}


# ---- what is computed


@torch.no_grad()
def randomize(model):
    """No weight stays zero or one, which would hide an error."""
    generator = torch.Generator().manual_seed(1)
    for parameter in model.parameters():
        parameter += 0.03 * torch.randn(parameter.shape, generator=generator)


def results(module, batch, precision):
    """{name: tensor} of a forward and a backward pass."""
    batch = batch.to(precision.device)
    module.zero_grad()
    with precision.autocast():
        logits = module.model(**batch.inputs)
        loss = module(*batch)
    loss.backward()
    gradients = [p.grad.flatten() for p in module.parameters() if p.grad is not None]
    tensors = {"logits": logits.detach(), "loss": loss.detach(), "gradient": torch.cat(gradients)}
    return {name: tensor.double().cpu() for name, tensor in tensors.items()}


def greedy(model):
    """Ids that follow prompts of two lengths: through padding, and the cache."""
    if model.kind == "encoder":
        return []
    prompts = [[1, 2, 3], [4, 5, 6, 7, 8]]
    sources = prompts if model.kind == "encoder_decoder" else None
    ids = list(generate(model.eval(), prompts, sources=sources, max_new_tokens=12))
    model.train()
    return ids


def numerics(bench):
    """Every preset on the device in float32 and bfloat16, beside the CPU in float32."""
    matmuls = torch.get_float32_matmul_precision()
    fp32 = bench.precision("fp32")
    for preset in names("model"):
        small = ["size=tiny", "model.context_length=32", "model.dropout=0"]
        config = compose([f"model={preset}", *small])
        module = LossModule(build_model(config.model, bench.vocab_size), config.loss)
        randomize(module.model)
        batch = bench.batch(config, 4)
        torch.set_float32_matmul_precision("highest")  # no TF32
        expected = results(module, batch, fp32._replace(device=torch.device("cpu")))
        text = greedy(module.model)
        module.to(bench.device)
        exact = results(module, batch, fp32)
        wrong = [] if greedy(module.model) == text else ["greedy text"]
        torch.set_float32_matmul_precision(matmuls)
        rough = results(module, batch, bench.precision("bf16"))
        errors = {}
        for found, dtype, limit in ((exact, "fp32", 1e-4), (rough, "bf16", 0.1)):
            for name, tensor in expected.items():
                error = ((found[name] - tensor).norm() / tensor.norm()).item()
                errors[f"{dtype}_{name}"] = error
                wrong += [] if error < limit else [f"{dtype}_{name}"]
        yield {preset: errors, "failed": [f"{preset}: {name}" for name in wrong]}


def precisions(bench):
    """The same run in float32, in half precision, and with activation checkpointing."""
    half = {"bf16": [], "fp16": ["precision=fp16"], "recompute": ["train.recompute=block"]}
    expected = None
    for name, overrides in {"fp32": ["precision=fp32"], **half}.items():
        figures = bench.train(name, "precision=bf16", "train.micro_batch_size=16", *overrides)
        expected = expected or figures["val_loss"]
        error = abs(figures["val_loss"] / expected - 1)
        yield {name: figures, "failed": [] if error < 0.02 else [name]}


@contextmanager
def torchrun():
    """As torchrun --nproc_per_node=1 starts train.py, which refuses to share a model with nobody."""
    variables = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}
    os.environ |= variables | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    choose = distributed.choose_parallel
    distributed.choose_parallel = lambda config, size: config.parallel
    yield
    torch.distributed.destroy_process_group()
    distributed.choose_parallel = choose
    for name in variables:
        del os.environ[name]


def shared(bench):
    """DDP and FSDP in a process group of one process (NCCL on a GPU): the losses of plain training."""
    cases = (("fp32", "adamw", 1e-3), ("fp32", "muon", 1e-3), ("bf16", "adamw", 0.02))
    for dtype, optimizer, limit in cases:
        overrides = [f"precision={dtype}", f"optimizer={optimizer}", "size=small", "train.steps=10"]
        name = f"{dtype}_{optimizer}"
        plain = bench.train(name, *overrides)
        for parallel in ("ddp", "fsdp"):
            with torchrun():
                figures = bench.train(f"{name}_{parallel}", *overrides, f"parallel={parallel}")
            error = abs(figures["val_loss"] / plain["val_loss"] - 1)
            wrong = [] if error < limit else [f"{name}_{parallel}"]
            yield {f"{name}_{parallel}": error, "failed": wrong}


def fitting(bench):
    """The search for a micro-batch in a fifth of the memory finds one that runs."""
    if not bench.tiny:
        torch.cuda.set_per_process_memory_fraction(0.2)
    figures = bench.train("fitted", "train.batch_size=128", "train.steps=5")
    all_fit = figures["micro_batch_size"] == 128
    yield figures | {"failed": ["all rows fit"] if all_fit else []}


def resume(*overrides):
    """A check: is a run the same to the byte when it is repeated, or stopped and resumed?"""

    def check(bench):
        settings = ["size=small", "model.dropout=0.1", "train.steps=20", *overrides]
        yield bench.train("first", *settings)
        expected = saved("first")
        yield {"checkpoint_bytes": sum(map(len, expected))}
        bench.train("again", *settings)
        stop = {3: lambda: os.kill(os.getpid(), signal.SIGTERM)}
        bench.train("stopped", *settings, before=stop)
        yield {"stopped_early": saved("stopped") != expected}
        bench.train("stopped", *settings, "resume=true")
        equal = {"repeats": saved("again") == expected, "resumes": saved("stopped") == expected}
        is_promised = bench.tiny or "deterministic=true" in overrides
        yield equal | {"failed": [name for name in equal if is_promised and not equal[name]]}

    return check


# ---- how fast, and in how much memory


def training(*overrides):
    """A check: the speed of a run of GPT-2, and its memory beside what dry_run=true estimates."""

    def check(bench):
        figures = bench.train("run", *overrides)
        config = bench.config(*overrides)
        dtype = torch.bfloat16
        counted = cost.count(config, dtype, bench.vocab_size)
        rows = figures["micro_batch_size"]
        estimated = counted.memory(rows, config.train.recompute, 1, dtype) / 1e9
        yield {"parameters": counted.n, "estimated_gb": estimated} | figures

    return check


def compilation(bench):
    """A step of GPT-2 is one graph, compiled once, and waits for the GPU once."""
    from torch._dynamo.utils import counters

    def count_waits(mode):
        if not bench.tiny:
            torch.cuda.set_sync_debug_mode(mode)

    before = {3: lambda: count_waits("warn"), 5: lambda: count_waits("default")}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        figures = bench.train("run", "compile=true", "train.micro_batch_size=16", before=before)
    waits = [w for w in caught if "called a synchronizing CUDA operation" in str(w.message)]
    graphs = counters["stats"]["unique_graphs"]
    breaks = [text[:120] for text in counters["graph_break"]]
    found = {"graphs": graphs, "breaks": breaks, "waits_per_step": len(waits) / 2}
    expected = {"graphs": 1, "breaks": [], "waits_per_step": bench.pick(1, 0)}
    wrong = [f"{name}: {found[name]}" for name in found if found[name] != expected[name]]
    yield figures | found | {"failed": wrong}


MASKS = {
    "causal": "model=gpt2",
    "gqa": "model=llama",
    "sliding_window": "model=llama model.attention.sliding_window=256",
    "relative_bias": "model=gpt2 position=relative",
    "softcap": "model=gpt2 model.attention.logit_softcap=30",
    "mla": "model=deepseek",
    "encoder": "model=bert",
}


def attention(bench):
    """The kernels of one layer in bfloat16, forward and backward, for each kind of mask."""
    for name, overrides in MASKS.items():
        config = bench.config(*overrides.split(), "model.n_layers=1")
        model = build_model(config.model, bench.vocab_size).to(bench.device)
        inputs = bench.batch(config, bench.pick(16, 2)).to(bench.device).inputs

        def layer(model=model, inputs=inputs):
            with bench.precision("bf16").autocast():
                model.hidden(**inputs).sum().backward()
            synchronize()

        ms = 1000 * seconds(layer, times=bench.pick(10, 1))
        with torch.profiler.profile() as profile:
            layer()
        called = {event.key for event in profile.key_averages()}
        kernels = sorted(key for key in called if "_scaled_dot_product" in key)
        is_fused = any("flash" in key or "cudnn" in key for key in kernels)
        slow = name in ("causal", "gqa") and not (bench.tiny or is_fused)
        yield {name: {"ms": ms, "kernels": kernels}, "failed": [f"{name}: slow"] if slow else []}


def decoding(bench):
    """Tokens per second of GPT-2 in bfloat16, with and without the kernels of cuDNN."""
    config = bench.config()
    model = build_model(config.model, bench.vocab_size).to(bench.device, torch.bfloat16).eval()
    new = bench.pick(128, 4)
    for rows in bench.pick((1, 64), (1, 2)):
        prompts = bench.batch(config, rows).inputs["tokens"][:, :16].tolist()
        for name, sampling in (("greedy", Sampling()), ("sampled", Sampling(0.8, top_k=50))):
            for cudnn in (True, False):
                torch.backends.cuda.enable_cudnn_sdp(cudnn)
                start = generate(model, prompts, max_new_tokens=new, sampling=sampling)
                list(start)  # plans its kernels
                again = generate(model, prompts, max_new_tokens=new, sampling=sampling)
                speed = rows * new / seconds(lambda ids=again: list(ids), times=1, warmup=0)
                yield {f"{name}_{rows}_{'cudnn' if cudnn else 'without_cudnn'}": speed}
