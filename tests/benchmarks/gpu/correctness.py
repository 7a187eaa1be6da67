"""Checks of what is computed. Each yields figures; what is wrong is listed as `failed`."""

import math
import os
import socket
import tempfile
from pathlib import Path
from types import SimpleNamespace

import torch

from model.checkpoint.load import iter_tensors
from model.checkpoint.save import model_tensors, save
from tests.benchmarks.gpu.setup import CONFIGS, model_config, randomize, seconds, synchronize
from training.distributed import Dist, init_distributed
from training.profile import find_micro_batch
from training.step import LossModule, TrainStep, seed_step

PRESETS = sorted(path.stem for path in (CONFIGS / "model").glob("*.yaml"))


def relative(a, b):
    """The largest difference, relative to the largest value."""
    a, b = a.double().cpu(), b.double().cpu()
    return ((a - b).abs().max() / b.abs().max()).item()


def angle(a, b):
    return 1 - torch.cosine_similarity(a.double().flatten(), b.double().flatten(), dim=0).item()


def results(model, batch, precision):
    """Logits, loss and gradient; the latter by the code of a training step with two micro-batches."""
    with torch.no_grad(), precision.autocast():
        logits = model(**batch.to(precision.device).inputs)
    model.zero_grad()
    step = TrainStep(LossModule(model), None, precision, Dist(), len(batch.targets) // 2, 0.0)
    total = step.backward(batch, batch.count)
    gradient = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
    return logits.cpu(), total.cpu() / batch.count, gradient.cpu()


def numerics(bench):
    """Every preset on the device in float32 and bfloat16, beside the CPU in float32."""
    bench, before = bench._replace(vocab_size=257), torch.get_float32_matmul_precision()
    on_cpu = bench._replace(device=torch.device("cpu"))
    for preset in PRESETS:
        config = model_config(preset, "tiny", context_length=32)
        batch = bench.batch(config, 4)
        model = randomize(on_cpu.model(config))
        torch.set_float32_matmul_precision("highest")  # no TF32
        expected = results(model, batch, on_cpu.precision("fp32"))
        model.to(bench.device)
        exact = results(model, batch, bench.precision("fp32"))
        errors = padding_and_cache(model, batch.to(bench.device).inputs)
        torch.set_float32_matmul_precision(before)
        rough = results(model, batch, bench.precision("bf16"))
        errors |= {
            name: relative(a, b)
            for name, a, b in zip(("logits", "loss", "gradient"), exact, expected, strict=True)
        }
        angles = {"bf16_logits": angle(rough[0], expected[0])}
        angles |= {"bf16_gradient": angle(rough[2], expected[2])}
        wrong = [name for name, error in errors.items() if not error < 1e-4]
        wrong += [name for name, error in angles.items() if not error < 0.01]
        yield {preset: errors | angles, "failed": [f"{preset}: {name}" for name in wrong]}


@torch.no_grad()
def padding_and_cache(model, inputs):
    """What padding on the left and a cache change in the logits."""
    tokens = inputs["tokens"]
    padded = inputs["source"] if model.kind == "encoder_decoder" else tokens
    visible = (torch.arange(padded.shape[1], device=padded.device) >= 3).expand(padded.shape)
    if model.kind == "encoder_decoder":
        memory = model.encode(padded)
        errors = relative(
            model(padded, tokens, source_visible=visible), model(padded[:, 3:], tokens)
        )
    else:
        errors = relative(model(padded, visible=visible)[:, 3:], model(padded[:, 3:]))
    errors = {"padding": errors}
    if model.kind == "encoder":
        return errors
    caches, hidden = model.new_caches(tokens.shape[1]), []
    for start, stop in ((0, 5), *((i, i + 1) for i in range(5, tokens.shape[1]))):
        new = tokens[:, start:stop]
        args = (model.hidden, new) if model.kind == "decoder" else (model.decode, new, memory)
        hidden.append(args[0](*args[1:], caches=caches))
    return errors | {"cache": relative(model.head(torch.cat(hidden, 1)), model(**inputs))}


def fp16(bench):
    """The loss scale settles, and every loss is finite."""
    bench = bench._replace(vocab_size=257)
    for preset, optimizer in (("gpt2", "adamw"), ("modern", "muon_modern")):
        config = bench.config(preset, "small")
        step, batch = (
            bench.step(config, 4, optimizer=optimizer, dtype="fp16"),
            bench.batch(config, 8),
        )
        metrics = [step(batch, 0.1) for _ in range(bench.pick(50, 10))]
        losses = [m.loss for m in metrics]
        figures = {
            "first": losses[0],
            "last": losses[-1],
            "skipped": sum(m.skipped for m in metrics),
        }
        is_wrong = not all(map(math.isfinite, losses)) or not losses[-1] < losses[0]
        yield {preset: figures | {"scale": step.scaler.get_scale()}, "failed": [preset] * is_wrong}


def train(step, initial, batches, resume_at=None):
    """(weights, median milliseconds of a step) after a step on each batch; resume_at: from a checkpoint."""
    load(step, initial.items(), {})
    times = []
    for number, batch in enumerate(batches):
        if number == resume_at:
            through_checkpoint(step, initial)
        seed_step(0, number)
        times.append(seconds(lambda batch=batch: step(batch, 1e-2), times=1, warmup=0))
    weights = {name: tensor.clone() for name, tensor in model_tensors(step.model).items()}
    return weights, 1000 * sorted(times)[len(times) // 2]


@torch.no_grad()
def load(step, weights, optimizer):
    parameters = step.model.state_dict()
    for name, tensor in weights:
        parameters[name].copy_(tensor)
    step.optimizer.reset()
    step.optimizer.load(optimizer.items())


def through_checkpoint(step, initial):
    """Save, start anew, and load."""
    parts = {"model": model_tensors(step.model), "optimizer": step.optimizer.tensors()}
    parts = {
        part: {n: t.detach().cpu() for n, t in tensors.items()} for part, tensors in parts.items()
    }
    with tempfile.TemporaryDirectory() as folder:
        save(Path(folder), parts, {"step": 1})
        load(step, initial.items(), {})
        paths = (Path(folder, "step-00000001", f"{part}.safetensors") for part in parts)
        weights, optimizer = map(iter_tensors, paths)
        load(step, weights, dict(optimizer))


def repeat(bench):
    """Is a run the same to the bit when it is repeated or resumed? What does that cost?"""
    config = bench.config("gpt2", "124m", n_layers=2, dropout=0.1)
    batches = [bench.batch(config, bench.pick(16, 4), seed) for seed in range(bench.pick(20, 4))]
    for deterministic in (False, True):
        for compiled in (False, True):
            name = (
                f"{'compiled' if compiled else 'eager'}{'_deterministic' if deterministic else ''}"
            )
            torch.use_deterministic_algorithms(deterministic)
            try:
                step = bench.step(config, len(batches[0].targets) // 2, compiled=compiled)
                initial = {n: t.clone() for n, t in model_tensors(step.model).items()}
                train(step, initial, batches[:2])  # compiles
                first, ms = train(step, initial, batches)
                again, _ = train(step, initial, batches)
                resumed, _ = train(step, initial, batches, resume_at=len(batches) // 2)
            except RuntimeError as error:  # an operation that has no deterministic form
                yield {name: {"error": str(error)[:200]}, "failed": [name]}
                continue
            finally:
                torch.use_deterministic_algorithms(False)
            equal = {"repeats": equals(first, again), "resumes": equals(first, resumed)}
            is_wrong = (deterministic or not bench.on_gpu) and not all(equal.values())
            yield {name: equal | {"ms": ms}, "failed": [name] * is_wrong}


def equals(first, second):
    return all(torch.equal(tensor, second[name]) for name, tensor in first.items())


def fitting(bench):
    """The search for a micro-batch in a fifth of the memory finds one, and leaves nothing behind."""
    config, rows, before = bench.config("gpt2", "124m"), bench.pick(128, 8), 0
    step, batch = bench.step(config, rows), bench.batch(config, rows)
    step(batch.rows(0, 1), 0.0)  # cuBLAS keeps a workspace
    step.optimizer.reset()
    settings = SimpleNamespace(train=SimpleNamespace(micro_batch_size="auto"), model=config)
    if bench.on_gpu:
        torch.cuda.set_per_process_memory_fraction(0.2)
        synchronize()
        before = torch.cuda.memory_allocated()
    try:
        n = step.micro_batch_size = find_micro_batch(settings, Dist(), step, batch, None)
        leaked = torch.cuda.memory_allocated() - before if bench.on_gpu else 0
        figures = {
            "rows": rows,
            "micro_batch_size": n,
            "leaked_bytes": leaked,
            "loss": step(batch, 0.0).loss,
        }
    finally:
        if bench.on_gpu:
            torch.cuda.set_per_process_memory_fraction(1.0)
    wrong = {
        "leaked_bytes": leaked > 1 << 20,
        "all rows fit": bench.on_gpu and not bench.tiny and n == rows,
    }
    yield figures | {"failed": [name for name, is_wrong in wrong.items() if is_wrong]}


def distributed(bench):
    """DDP and FSDP in a process group of one process (NCCL on a GPU): the losses of plain training."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        variables = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1])}
    variables |= {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}
    os.environ |= variables
    dist, device = init_distributed(bench.device, "ddp", 60)
    bench = bench._replace(device=device, vocab_size=257)
    config = model_config("gpt2", "tiny", context_length=32)
    batches = [bench.batch(config, 8, seed) for seed in range(3)]

    def losses(parallel, **options):
        step = bench.step(config, 4, dist=dist._replace(parallel=parallel), **options)
        return torch.tensor([step(batch, 0.1).loss for batch in batches])

    cases = [("ddp", "fp32", "adamw", False, 1e-4), ("ddp", "fp32", "adamw", True, 1e-4)]
    cases += [("fsdp", "fp32", "adamw", False, 1e-4), ("fsdp", "fp32", "muon", False, 1e-3)]
    cases += [("fsdp", "bf16", "adamw", False, 0.02)]
    for parallel, dtype, optimizer, compiled, limit in cases:
        options = {"dtype": dtype, "optimizer": optimizer}
        error = relative(losses(parallel, compiled=compiled, **options), losses("none", **options))
        name = f"{parallel}_{dtype}_{optimizer}{'_compiled' if compiled else ''}"
        yield {name: error, "failed": [name] * (not error < limit)}
    torch.distributed.destroy_process_group()
    for name in variables:
        del os.environ[name]
