"""How fast text becomes tokens on disk, beside tiktoken's own batch encoding, which writes nothing, and
`datasets.map` as it is often used to prepare a corpus. Same text, encoding and cores, in one run.

    OMP_NUM_THREADS=2 TIKTOKEN_CACHE_DIR=... python -m tests.benchmarks.tokenizing [rounds]
"""

import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

import datasets
import numpy as np

from data.prepare import prepare
from data.readers import stdlib_files
from tests.data.corpora import source, trainer

CORES = 2
SPECIALS = ("end",)


class Given:
    """A trained tokenizer, so that only reading, encoding and writing are timed."""

    def __init__(self, tokenizer):
        self.train = lambda texts, specials: tokenizer


def ours(folder, text, tokenizer, texts):
    found = source("text", path=str(text))
    prepare(found, Given(tokenizer), SPECIALS, cache=folder, val_fraction=0.05)


def by_batch(folder, text, tokenizer, texts):
    tokenizer.encoding.encode_ordinary_batch(texts, num_threads=CORES)


def by_map(folder, text, tokenizer, texts):
    files = {"data_files": str(text / "*"), "cache_dir": str(folder / "arrow")}
    rows = datasets.load_dataset("text", split="train", sample_by="document", **files)
    encoding, end = tokenizer.encoding, tokenizer.specials["end"]

    def process(row):
        ids = [*encoding.encode_ordinary(row["text"]), end]
        return {"ids": ids, "len": len(ids)}

    done = rows.map(process, remove_columns=["text"], num_proc=CORES)
    out = np.memmap(folder / "map.bin", np.uint16, "w+", shape=(sum(done["len"]),))
    at, shards = 0, 16
    for shard in range(shards):
        ids = np.concatenate(done.shard(shards, shard, contiguous=True).with_format("numpy")["ids"])
        out[at : at + len(ids)] = ids
        at += len(ids)
    out.flush()


def seconds(work, *words):
    start = time.perf_counter()
    work(*words)
    return time.perf_counter() - start


def main(rounds):
    datasets.disable_progress_bars()
    texts = [path.read_text("utf-8") for path in stdlib_files()]
    n_bytes = 2 * sum(len(text.encode()) for text in texts)
    tokenizer = trainer("gpt2").train(None, SPECIALS)
    found = {work: [] for work in (ours, by_batch, by_map)}
    with tempfile.TemporaryDirectory() as text:
        for copy in range(2):
            for i, content in enumerate(texts):
                (Path(text) / f"{copy}-{i:04}.py").write_text(content, encoding="utf-8")
        for _ in range(rounds):
            for work, times in found.items():
                with tempfile.TemporaryDirectory() as folder:
                    os.sync()  # so that nobody waits for what others have written
                    times.append(seconds(work, Path(folder), Path(text), tokenizer, texts * 2))
    for work, times in found.items():
        print(f"{work.__name__:<10}{n_bytes / 1e6 / statistics.median(times):6.1f} MB/s")
    for rival in (by_batch, by_map):
        ratios = [r / o for o, r in zip(found[ours], found[rival], strict=True)]
        spread = f"({min(ratios):.2f} to {max(ratios):.2f})"
        print(f"ours / {rival.__name__}: {statistics.median(ratios):.2f} {spread}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 5)
