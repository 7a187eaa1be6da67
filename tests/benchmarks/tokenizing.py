"""How fast text becomes tokens on disk, beside tiktoken's batch encoding and `datasets.map`.

The text is in many files, and in one. tiktoken writes nothing; `datasets.map` is used as it often is to
prepare a corpus. All of them take turns in one run.

    OMP_NUM_THREADS=2 TIKTOKEN_CACHE_DIR=... python -m tests.benchmarks.tokenizing [rounds]
"""

import os
import sys
import tempfile
import time
from copy import copy
from pathlib import Path
from statistics import median
from threading import get_ident
from types import SimpleNamespace

import datasets
import numpy as np

from data.prepare import prepare
from data.readers import stdlib_files
from tests.data.corpora import source, trainer

CORES = 2
SPECIALS = ("end",)


def ours(folder, text, tokenizer, texts, name="files"):
    trained = SimpleNamespace(
        train=lambda texts, specials: tokenizer
    )  # time reading, encoding and writing
    prepare(
        source("text", path=str(text / name)), trained, SPECIALS, cache=folder, val_fraction=0.05
    )


def ours_one_file(folder, text, tokenizer, texts):
    ours(folder, text, tokenizer, texts, "one.txt")


def tiktoken_batch(folder, text, tokenizer, texts):
    # a copy: an encoding is faster in the first thread that uses it, here the main one
    copy(tokenizer.encoding_of(get_ident())).encode_ordinary_batch(texts, num_threads=CORES)


def datasets_map(folder, text, tokenizer, texts):
    files = {"data_files": str(text / "files/*"), "cache_dir": str(folder / "arrow")}
    rows = datasets.load_dataset("text", split="train", sample_by="document", **files)
    encoding, end = tokenizer.encoding_of(get_ident()), tokenizer.specials["end"]

    def process(row):
        ids = [*encoding.encode_ordinary(row["text"]), end]
        return {"ids": ids, "len": len(ids)}

    encoded = rows.map(process, remove_columns=["text"], num_proc=CORES)
    out = np.memmap(folder / "map.bin", np.uint16, "w+", shape=(sum(encoded["len"]),))
    start, shards = 0, 16
    for shard in range(shards):
        ids = np.concatenate(
            encoded.shard(shards, shard, contiguous=True).with_format("numpy")["ids"]
        )
        out[start : start + len(ids)] = ids
        start += len(ids)
    out.flush()


def main(rounds=5):
    datasets.disable_progress_bars()
    texts = 2 * [path.read_text("utf-8") for path in stdlib_files()]
    megabytes = sum(len(text.encode()) for text in texts) / 1e6
    tokenizer = trainer("gpt2").train(None, SPECIALS)
    times = {ours: [], ours_one_file: [], tiktoken_batch: [], datasets_map: []}
    with tempfile.TemporaryDirectory() as text:
        (Path(text) / "files").mkdir()
        for i, content in enumerate(texts):
            (Path(text) / f"files/{i:04}.py").write_text(content, encoding="utf-8")
        (Path(text) / "one.txt").write_text("".join(texts), encoding="utf-8")
        for _ in range(rounds):
            for function, seconds in times.items():
                with tempfile.TemporaryDirectory() as folder:
                    os.sync()  # so that nothing waits for earlier writes
                    start = time.perf_counter()
                    function(Path(folder), Path(text), tokenizer, texts)
                    seconds.append(time.perf_counter() - start)
    for function, seconds in times.items():
        ratios = [other / own for own, other in zip(times[ours], seconds, strict=True)]
        spread = f"{median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
        speed = f"{megabytes / median(seconds):6.1f} MB/s"
        print(f"{function.__name__:<15}{speed}, time relative to ours {spread}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
