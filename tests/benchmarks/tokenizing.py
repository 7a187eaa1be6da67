"""How fast text becomes tokens on disk, beside tiktoken's batch encoding, which writes nothing.

They take turns in one run.

    OMP_NUM_THREADS=2 TIKTOKEN_CACHE_DIR=... python -m tests.benchmarks.tokenizing [rounds]
"""

import os
import sys
import tempfile
import time
from copy import copy
from pathlib import Path
from statistics import median

import tiktoken

from configs.compose import compose
from data.corpus import load_data
from data.readers import stdlib_files
from data.tokenizers.train import Tiktoken
from tests.benchmarks._turns import ratios, spread, take_turns


def main(rounds=5):
    texts = 2 * [path.read_text("utf-8") for path in stdlib_files()]
    megabytes = sum(len(text.encode()) for text in texts) / 1e6
    encoding = tiktoken.get_encoding("gpt2")
    tokenizer = Tiktoken("gpt2").train(None, ("end",))
    Tiktoken.train = lambda *_: tokenizer  # only reading, encoding and writing are timed

    def measure(side):
        with tempfile.TemporaryDirectory() as folder:
            os.sync()  # so that nothing waits for earlier writes
            start = time.perf_counter()
            if side == "ours":
                paths = [f"data.path={text}/files", f"data.cache={folder}"]
                load_data(compose(["data=text", *paths, "tokenizer=gpt2"]))
            else:  # a copy: an encoding is faster in the first thread that uses it, here the main one
                copy(encoding).encode_ordinary_batch(texts, num_threads=2)
            return time.perf_counter() - start

    with tempfile.TemporaryDirectory() as text:
        Path(text, "files").mkdir()
        for i, content in enumerate(texts):
            Path(text, f"files/{i:04}.py").write_text(content, encoding="utf-8")
        times = take_turns(["ours", "tiktoken"], rounds, measure)
    for side, seconds in times.items():
        speed = f"{megabytes / median(seconds):6.1f} MB/s"
        relative = spread(ratios(seconds, times["ours"]))
        print(f"{side:<9}{speed}, time relative to ours {relative}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
