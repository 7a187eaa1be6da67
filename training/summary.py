"""Compressors: how many bits per byte of the validation text they need, for they are language models too."""

import json
import lzma
import zlib
from concurrent.futures import ThreadPoolExecutor

from data.store import unigram_entropy

LARGEST = 64 << 20  # bytes: what xz -9 can look back on


def compressors(loaders):
    """{name: bits per byte}, kept beside the tokens, for it takes some seconds."""
    training, validation = loaders.train.part, loaders.validation.part
    kept = validation.path.parent / "compressors.json"
    if kept.exists():
        return json.loads(kept.read_text())
    if validation.n_bytes > LARGEST:
        return {}
    text = text_of(validation, loaders.tokenizer)
    sizes = {"gzip -9": len(zlib.compress(text, 9, wbits=31)), "xz -9": xz(text)}
    if training.n_bytes + validation.n_bytes <= LARGEST:
        before = text_of(training, loaders.tokenizer)
        with ThreadPoolExecutor(2) as threads:
            alone, both = threads.map(xz, (before, before + text))
        sizes["xz -9 that has seen the training text"] = both - alone
    found = {name: 8 * size / len(text) for name, size in sizes.items()}
    kept.write_text(json.dumps(found))
    return found


def xz(text):
    return len(lzma.compress(text, preset=9))


def text_of(part, tokenizer):
    ordinary = part.tokens[part.tokens < tokenizer.n_ordinary]
    return tokenizer.decode_bytes(ordinary.tolist())


PROMPTS = {
    "decoder": '--prompt "def "',
    "encoder": '--prompt "def [MASK](self):"',
    "encoder_decoder": '--source "..."',
}


def summarize(run, found):
    """found: the last evaluation."""
    lines = []
    if "val_bpb" in found:
        lines.append(f"{'this model':<40} {found['val_bpb']:.3f} bits per byte of the validation text")
        lines += [f"{name:<40} {bits:.3f}" for name, bits in compressors(run.loaders).items()]
    simple = unigram_entropy(run.loaders.train.part.tokens)
    if run.state.step and found["val_loss"] >= simple:
        lines.append(
            f"warning: to know how often each token occurs is enough for a loss of {simple:.2f}; train "
            "longer, or at another optimizer.lr"
        )
    if run.state.step < run.steps:
        lines.append(
            f"ended at step {run.state.step:,} of {run.steps:,}: {run.state.evals_since_best} evaluations "
            "in a row brought nothing better"
        )
    if run.checkpointer.count:
        lines.append(run.checkpointer.cost())
    lines += ["", f"kept in {run.folder}, with curve.png; next:"]
    if run.state.step:
        lines.append(f"    python sample.py --run {run.folder} {PROMPTS[run.config.model.kind]}")
    lines.append(f"    python -m training.compare {run.folder} runs/...")
    return "\n".join(lines)
