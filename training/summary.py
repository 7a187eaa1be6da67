"""Summary: the lines after a run. Compressors are a baseline, for they model text as well."""

import json
import lzma
import zlib
from concurrent.futures import ThreadPoolExecutor

from data.store import unigram_entropy

XZ_DICTIONARY = 64 << 20  # bytes that xz -9 looks back
PROMPTS = {
    "decoder": '--prompt "def "',
    "encoder": '--prompt "def [MASK](self):"',
    "encoder_decoder": '--source "..."',
}


def summarize(run, val_metrics):
    lines, step = [], run.state.step
    if "val_bpb" in val_metrics:
        compressed = {"this model": val_metrics["val_bpb"], **compress(run.loaders)}
        lines += [f"{name:<40} {bits:.3f} bits/byte" for name, bits in compressed.items()]
    unigram = unigram_entropy(run.loaders.train.part.tokens)
    if step and val_metrics["val_loss"] >= unigram:
        lines.append(
            f"warning: no better than the unigram baseline (loss {unigram:.2f}); train longer or change optimizer.lr"
        )
    if step < run.steps:
        n = run.state.evals_since_best
        lines.append(f"stopped early at step {step:,} of {run.steps:,}: no improvement in {n} evaluations")
    if run.checkpointer.count:
        lines.append(run.checkpointer.cost())
    lines += ["", f"saved to {run.folder}, with curve.png; next:"]
    if step:
        lines.append(f"    python sample.py --run {run.folder} {PROMPTS[run.config.model.kind]}")
    lines.append(f"    python -m training.compare {run.folder} runs/...")
    return "\n".join(lines)


def compress(loaders):
    """{compressor: bits per byte of the validation text}, cached beside the tokens because it takes seconds."""
    train, validation = loaders.train.part, loaders.validation.part
    cached = validation.path.parent / "compressors.json"
    if cached.exists():
        return json.loads(cached.read_text())
    if validation.n_bytes > XZ_DICTIONARY:
        return {}

    def text_of(part):
        return loaders.tokenizer.decode_bytes(
            part.tokens[part.tokens < loaders.tokenizer.n_ordinary].tolist()
        )

    def xz(text):
        return len(lzma.compress(text, preset=9))

    text = text_of(validation)
    sizes = {"gzip -9": len(zlib.compress(text, 9, wbits=31)), "xz -9": xz(text)}
    if train.n_bytes + validation.n_bytes <= XZ_DICTIONARY:
        before = text_of(train)
        with ThreadPoolExecutor(2) as threads:
            alone, both = threads.map(xz, (before, before + text))
        sizes["xz -9 primed with the training text"] = both - alone
    bits = {name: 8 * size / len(text) for name, size in sizes.items()}
    cached.write_text(json.dumps(bits))
    return bits
