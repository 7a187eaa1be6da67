"""Summary: the lines after a run. Compressors model text as well, so they are a baseline."""

import json
import lzma
import zlib
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from configs.registry import NonNegative, matches
from data.disk import atomic_write, read_json_or_none

COMPRESSORS = "gzip -9", "xz -9", "xz -9 primed with the training text"
XZ_BYTES = 32 << 20  # of text; more would take minutes and gigabytes
PROMPTS = {
    "decoder": '--prompt "..."',
    "encoder": '--prompt "... [MASK] ..."',
    "encoder_decoder": '--source "..."',
}


def summarize(run, val_metrics):
    lines, step = [], run.state.step
    if "val_bpb" in val_metrics:
        bits = {"this model": val_metrics["val_bpb"], **compress(run.loaders)}
        lines += [f"{name:<40} {n:.3f} bits/byte" for name, n in bits.items()]
    unigram, model = run.loaders.train.part.unigram_entropy, run.config.model
    slow = model.kind == "encoder" and model.position["kind"] == "learned"
    if step and val_metrics["val_loss"] >= (0.85 if slow else 1) * unigram:
        advice = (
            "model=modern_encoder learns faster" if slow else "train longer or change optimizer.lr"
        )
        advice += "; if the training loss is far lower, use more text"
        better = (
            f"{'hardly' if slow else 'no'} better than the unigram baseline (loss {unigram:.2f})"
        )
        lines.append(f"warning: {better}; {advice}")
    if step < run.steps:
        n = run.state.evals_since_best
        lines.append(
            f"stopped early at step {step:,} of {run.steps:,}: no improvement in {n} evaluations"
        )
    if run.checkpointer.count:
        lines.append(run.checkpointer.cost())
    lines += ["", f"saved to {run.folder}, with curve.png; next:"]
    if step:
        lines.append(f"    python sample.py --run {run.folder} {PROMPTS[run.config.model.kind]}")
    return "\n".join([*lines, f"    python -m training.compare {run.folder} runs/..."])


def compress(loaders):
    """{compressor: bits per byte of the validation text}, cached because it takes seconds."""
    train, validation, tokenizer = loaders.train.part, loaders.validation.part, loaders.tokenizer
    cached = validation.path.parent / "bits_per_byte.json"
    bits = read_json_or_none(cached)
    if bits and matches(bits, dict[str, NonNegative]) and bits.keys() <= set(COMPRESSORS):
        return bits
    if validation.n_bytes > XZ_BYTES:
        return {}
    parts = [validation, train] if train.n_bytes + validation.n_bytes <= XZ_BYTES else [validation]
    text, *prime = (
        tokenizer.decode_bytes(p.tokens[p.tokens < tokenizer.n_ordinary].tolist()) for p in parts
    )
    with ThreadPoolExecutor(2) as threads:
        texts = [text, *prime, *(first + text for first in prime)]
        xz = list(threads.map(xz_size, texts))
    sizes = [len(zlib.compress(text, 9, wbits=31)), xz[0], *([xz[2] - xz[1]] if prime else [])]
    bits = {name: 8 * size / len(text) for name, size in zip(COMPRESSORS, sizes, strict=False)}
    with suppress(OSError):  # it only saves time
        atomic_write(cached, json.dumps(bits))
    return bits


def xz_size(text):
    """Compressed by xz -9, whose dictionary of 64 MiB, and ten times that of memory, is cut to the text."""
    options = {
        "id": lzma.FILTER_LZMA2,
        "preset": 9,
        "dict_size": min(max(len(text), 4096), 64 << 20),
    }
    return len(lzma.compress(text, filters=[options]))
