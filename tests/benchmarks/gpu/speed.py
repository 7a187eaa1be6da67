"""Checks of how fast, and in how much memory. Each yields figures."""

import platform
import shutil
import subprocess
import time
from collections import Counter
from functools import partial
from importlib.util import find_spec

import torch
import torch.nn.functional as F
from torch._dynamo.utils import counters

import model.loss
from model.embedding import Head
from model.generate.decode import decode
from model.generate.sampling import GREEDY, Sampling
from tests.benchmarks.gpu.setup import (
    counting_syncs,
    make_optimizer,
    part,
    peak_gb,
    release,
    seconds,
    synchronize,
)
from training.profile import count_flops_and_activations

MICRO_BATCHES = 4  # in a step that is timed
QUERY = "name,driver_version,clocks.max.sm,power.limit,memory.total"


def environment(bench):
    """What this machine is, and how close to its published peak it gets."""
    yield {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "device": str(bench.device),
    }
    yield {
        "triton": bool(find_spec("triton")),
        "compiler": shutil.which("gcc") or shutil.which("cc"),
    }
    if bench.on_gpu:
        yield {"gpu": torch.cuda.get_device_name(), "cuda": torch.version.cuda}
        yield {
            "cudnn": torch.backends.cudnn.version(),
            "peak_flops": bench.precision("bf16").peak_flops(),
        }
        if smi := shutil.which("nvidia-smi"):
            command = [smi, f"--query-gpu={QUERY}", "--format=csv,noheader"]
            yield {
                "nvidia_smi": subprocess.run(
                    command, stdout=subprocess.PIPE, text=True
                ).stdout.strip()
            }
    n = bench.pick(8192, 128)
    a, b = torch.randn(2, n, n, device=bench.device, dtype=torch.bfloat16)
    yield {"bf16_tflops": 2 * n**3 / seconds(lambda: a @ b, times=10) / 1e12}
    x = torch.zeros(bench.pick(1 << 30, 1 << 20), dtype=torch.uint8, device=bench.device)
    y = torch.empty_like(x)
    yield {"copy_gb_per_second": 2 * x.nbytes / seconds(lambda: y.copy_(x), times=10) / 1e9}


def masks():
    """{name: (preset, changes, whether rows are padded)}: the ways in which scores become weights."""
    window = {"attention": part("attention", "gqa", sliding_window=256)}
    softcap = {"attention": part("attention", "mha", logit_softcap=30.0)}
    return {
        "causal": ("gpt2", {}, False),
        "padding": ("gpt2", {}, True),
        "gqa": ("llama", {}, False),
        "gqa_padding": ("llama", {}, True),
        "sliding_window": ("llama", window, False),
        "relative_bias": ("gpt2", {"position": part("position", "relative")}, False),
        "softcap": ("gpt2", softcap, False),
        "mla": ("deepseek", {}, False),
        "encoder": ("bert", {}, False),
    }


def attention(bench):
    """The kernels of one layer in bfloat16, forward and backward, for each kind of mask."""
    activities = [torch.profiler.ProfilerActivity.CPU]
    activities += [torch.profiler.ProfilerActivity.CUDA] if bench.on_gpu else []
    for name, (preset, changes, padded) in masks().items():
        release()
        config = bench.config(preset, "124m", n_layers=1, **changes)
        network, batch = bench.model(config), bench.batch(config, bench.pick(16, 2))
        inputs = batch.to(bench.device).inputs
        if padded:
            inputs["visible"] = torch.ones_like(inputs["tokens"], dtype=torch.bool)
            inputs["visible"][0, :5] = False

        def layer(network=network, inputs=inputs):
            with bench.precision("bf16").autocast():
                network.hidden(**inputs).sum().backward()

        ms = 1000 * seconds(layer, times=bench.pick(10, 1), warmup=1)
        with torch.profiler.profile(activities=activities) as profile:
            layer()
            synchronize()
        events = profile.key_averages()
        backends = sorted(
            {e.key.removeprefix("aten::") for e in events if "_scaled_dot_product" in e.key}
        )
        on_gpu = [e for e in events if e.device_type == torch.autograd.DeviceType.CUDA]
        longest = sorted(on_gpu, key=lambda e: -e.self_device_time_total)[:4]
        figures = {"ms": ms, "backends": backends, "kernels": [e.key[:60] for e in longest]}
        fused = any("flash" in backend or "cudnn" in backend for backend in backends)
        slow = bench.on_gpu and name in ("causal", "gqa") and not fused
        yield {
            name: figures,
            "failed": [f"{name} runs {backends or 'no fused kernel'}"] if slow else [],
        }


def compilation(bench):
    """GPT-2's step: graphs, breaks, compilations after the third batch, and waits for the GPU."""
    config, rows = bench.config("gpt2", "124m"), bench.pick(16, 2)
    step = bench.step(config, rows, compiled=True)
    counters.clear()
    batches, start = [bench.batch(config, rows, seed) for seed in range(6)], time.perf_counter()
    step.backward(batches[0], batches[0].count)
    synchronize()
    yield {"compile_seconds": time.perf_counter() - start}
    for batch in batches[:3]:
        step(batch, 1e-3)
    graphs = counters["stats"]["unique_graphs"]
    yield {
        "graphs": graphs,
        "breaks": [f"{n} x {b.splitlines()[0]:.120}" for b, n in counters["graph_break"].items()],
    }
    for batch in batches[3:]:
        step(batch, 1e-3)
    recompiled = counters["stats"]["unique_graphs"] - graphs
    yield {
        "recompiled": recompiled,
        "failed": [f"{recompiled} graphs are compiled anew"] * bool(recompiled),
    }
    if not bench.on_gpu:
        yield {"syncs_per_step": "not counted without a GPU"}
        return
    for n in (1, MICRO_BATCHES):
        batch = bench.batch(config, n * rows)
        with counting_syncs() as waits:
            step(batch, 1e-3)
        wrong = [f"{len(waits)} syncs with {n} micro-batches"] * (len(waits) != 1)
        yield {f"syncs_of_{n}_micro_batches": len(waits), "failed": wrong}


def throughput(bench, config, step):
    """Tokens per second, model FLOPs utilization and memory of steps of MICRO_BATCHES micro-batches."""
    batch = bench.batch(config, MICRO_BATCHES * step.micro_batch_size)
    row = batch.rows(0, 1).map_tensors(torch.clone).to(bench.device)
    flops, _ = count_flops_and_activations(step.model, step.precision, row)
    per_step = seconds(lambda: step(batch, 1e-3), times=bench.pick(8, 1))
    peak, tokens = step.precision.peak_flops(), batch.targets.numel()
    mfu = peak and flops * len(batch.targets) / per_step / peak
    figures = {"tokens_per_second": tokens / per_step, "ms": 1000 * per_step, "mfu": mfu}
    return figures | {"gflop_per_token": flops / config.context_length / 1e9, "peak_gb": peak_gb()}


def speed(bench):
    """Steps of gpt2 124m in bfloat16, by micro-batch, eager and compiled."""
    config, gpt2 = bench.config("gpt2", "124m"), bench.vocab_size
    cases = [(False, rows, gpt2) for rows in (8, 16, 32, 64)]
    cases += [(True, 32, gpt2), (True, 32, 50_304), (True, 16, gpt2), (True, 64, gpt2)]
    for compiled, rows, vocab_size in bench.pick(cases, [(False, 2, gpt2), (True, 2, gpt2)]):
        name = f"{'compiled' if compiled else 'eager'}_{rows}_vocab_{vocab_size}"
        try:
            step = bench._replace(vocab_size=vocab_size).step(config, rows, compiled=compiled)
            yield {name: throughput(bench, config, step)}
        except torch.OutOfMemoryError:
            yield {name: {"error": "out of memory"}}
        step = None


def whole_loss(hidden, head, targets):
    return F.cross_entropy(head(hidden).float(), targets, reduction="sum")


def chunked_loss(hidden, head, targets):
    return model.loss.loss(hidden, head, targets, len(targets))[0]


def loss(bench):
    """The chunked loss, forward and backward, by the size of its chunks, beside cross_entropy as a whole."""
    positions, width = bench.pick((16_384, 768), (256, 16))
    torch.manual_seed(0)
    head = Head(width, bench.vocab_size).to(bench.device)
    hidden = torch.randn(positions, width, device=bench.device, requires_grad=True)
    targets = torch.randint(bench.vocab_size, (positions,), device=bench.device)
    usual, expected = (model.loss.CHUNK, model.loss.GPU_CHUNK), None
    sizes = bench.pick((512, 1024, 2048, 4096, 8192), (64, 128))
    cases = [("whole", whole_loss), *((f"chunks_of_{n}", chunked_loss) for n in sizes)]
    for name, function in [*cases, ("whole_compiled", bench.compile(whole_loss))]:
        if name.startswith("chunks"):
            model.loss.CHUNK = model.loss.GPU_CHUNK = int(name.rpartition("_")[2])

        def run(function=function):
            hidden.grad = head.map.weight.grad = None
            with bench.precision("bf16").autocast():
                total = function(hidden, head, targets)
            total.backward()
            return total.detach()

        release()
        ms = 1000 * seconds(run, times=bench.pick(10, 1))
        results = run(), hidden.grad.clone(), head.map.weight.grad.clone()
        model.loss.CHUNK, model.loss.GPU_CHUNK = usual
        expected = expected or results
        errors = [
            ((a - b).norm() / b.norm()).item() for a, b in zip(results, expected, strict=True)
        ]
        wrong = [f"{name} differs by {max(errors):.2g}"] * (not max(errors) < 0.02)
        yield {name: {"ms": ms, "peak_gb": peak_gb()}, "failed": wrong}


def large(bench):
    """Llama with 1.4 billion and with 350 million parameters, by AdamW and by Muon."""
    sizes = {"d_model": 2048, "n_layers": 26, "n_heads": 16, "context_length": 2048}
    bench = bench._replace(vocab_size=bench.pick(32_000, 64))
    for name, changes, rows in (("1.4b", sizes, 4), ("350m", {}, 16))[: bench.pick(2, 1)]:
        config = bench.config("llama", "350m", **bench.pick(changes, {}))
        step = bench.step(config, bench.pick(rows, 2), compiled=True)
        yield {f"{name}_parameters": sum(p.numel() for p in step.model.parameters())}
        for optimizer in ("adamw", "muon"):
            step.optimizer.reset()
            step.optimizer = make_optimizer(optimizer, step.model)
            if bench.on_gpu:
                torch.cuda.reset_peak_memory_stats()
            yield {f"{name}_{optimizer}": throughput(bench, config, step)}
        del step


def decoding(bench):
    """Tokens per second of gpt2 124m in bfloat16."""
    release()
    new, config = bench.pick(128, 4), bench.config("gpt2", "124m")
    network = bench.model(config).to(torch.bfloat16).eval()
    for rows in bench.pick((1, 64), (1, 2)):
        prompts = bench.batch(config, rows).inputs["tokens"][:, :16].tolist()
        for name, sampling in (
            ("greedy", GREEDY),
            ("sampled", Sampling(temperature=0.8, top_k=50)),
        ):

            def run(n, prompts=prompts, sampling=sampling):
                return [
                    step.ids
                    for step in decode(network, prompts, max_new_tokens=n, sampling=sampling)
                ]

            first = run(8)
            per_run = seconds(partial(run, new), times=1, warmup=0)
            figures = {"tokens_per_second": rows * new / per_run, "repeats": first == run(8)}
            if bench.on_gpu:
                with counting_syncs() as waits:
                    run(8)
                where = Counter(f"{w.filename.rpartition('/')[2]}:{w.lineno}" for w in waits)
                figures |= {"syncs_per_token": len(waits) / 8, "where": dict(where.most_common(6))}
            yield {f"{name}_{rows}": figures}


def transformers(bench):
    """GPT-2 of transformers in a loop that is compiled alike: steps in turn with ours."""
    try:
        import transformers as hf
    except ImportError:
        yield {"skipped": "transformers is not installed"}
        return
    config, rows = bench.config("gpt2", "124m"), bench.pick(16, 2)
    step, batch = bench.step(config, rows, compiled=True), bench.batch(config, rows)
    sizes = {"n_layer": config.n_layers, "n_head": config.n_heads, "n_embd": config.d_model}
    sizes |= {
        "n_positions": config.context_length,
        "vocab_size": bench.vocab_size,
        "use_cache": False,
    }
    sizes |= {"bos_token_id": None, "eos_token_id": None}
    settings = hf.GPT2Config(**sizes, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)
    theirs = hf.GPT2LMHeadModel(settings).to(bench.device).train()
    forward = bench.compile(theirs)
    optimizer = torch.optim.AdamW(theirs.parameters(), lr=1e-6, fused=True)
    tokens = batch.to(bench.device).inputs["tokens"]

    def their_step():
        optimizer.zero_grad()
        with bench.precision("bf16").autocast():
            total = forward(input_ids=tokens, labels=tokens).loss
        total.backward()
        torch.nn.utils.clip_grad_norm_(theirs.parameters(), 1.0)
        optimizer.step()
        return total.item()

    columns = {their_step: [], partial(step, batch, 1e-3): []}
    for turn in range(bench.pick(6, 2)):
        for function, times in columns.items():
            once = seconds(function, times=bench.pick(5, 1), warmup=0)
            times += [once] * bool(turn)  # the first turn compiles
    slow, fast = (sorted(times) for times in columns.values())
    middle = len(fast) // 2
    yield {"ms_of_transformers": 1000 * slow[middle], "ms": 1000 * fast[middle]}
    yield {"ratio": slow[middle] / fast[middle], "attention": theirs.config._attn_implementation}


def targets(rows):
    """What is aimed at, and whether it was met: from the rows of the checks."""
    figures = {check: row for check, row in rows.items() if row["ok"]}

    def best(check, prefix):
        found = [v.get("mfu") for k, v in figures.get(check, {}).items() if k.startswith(prefix)]
        return max(filter(None, found), default=None)

    measured = {
        "gpt2_124m_mfu": (best("speed", "compiled"), 0.5),
        "times_transformers": (figures.get("transformers", {}).get("ratio"), 1.2),
        "llama_1.4b_mfu": (best("large", "1.4b_"), 0.55),
    }
    verdicts = {None: "not measured", True: "met", False: "missed"}
    return {
        name: {"measured": value, "target": target, "verdict": verdicts[value and value >= target]}
        for name, (value, target) in measured.items()
    }
