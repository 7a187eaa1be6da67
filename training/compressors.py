"""Compressors: how many bits per byte of the validation text they need, for they are language models too."""

import json
import lzma
import zlib
from concurrent.futures import ThreadPoolExecutor

LARGEST = 64 << 20  # bytes: what xz -9 can look back on


def compressors(streams):
    """{name: bits per byte}, kept beside the tokens, for it takes some seconds."""
    training, validation = streams.train.part, streams.validation.part
    kept = validation.path.parent / "compressors.json"
    if kept.exists():
        return json.loads(kept.read_text())
    if validation.n_bytes > LARGEST:
        return {}
    text = text_of(validation, streams.tokenizer)
    sizes = {"gzip -9": len(zlib.compress(text, 9, wbits=31)), "xz -9": xz(text)}
    if training.n_bytes + validation.n_bytes <= LARGEST:
        before = text_of(training, streams.tokenizer)
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
    return tokenizer.bytes_of(ordinary.tolist())
