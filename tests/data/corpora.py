"""What the tests of data share: small corpora, built on the spot."""

import json
from pathlib import Path

from configs.registry import build
from data.loader import TokenLoader
from data.mix import SOURCES
from data.objectives import OBJECTIVES
from data.pairs import PairLoader
from data.prepare import prepare, split_chunks
from data.splits import hold_out
from data.tokenizers.train import TRAINERS
from tests.parts import part

SPECIALS = ("end", "pad", "start", "mask")


def source(name, /, **changes):
    shared = {"cache": "cache", "val_fraction": 0.05}
    return build("data", SOURCES, shared | part("data", name, **changes))


def trainer(name="byte", **changes):
    return build("tokenizer", TRAINERS, part("tokenizer", name, **changes))


def objective(name, context_length=16, architecture="decoder", **changes):
    shared = {"context_length": context_length, "architecture": architecture}
    return build("objective", OBJECTIVES, part("objective", name, **changes), shared)


def corpus(source, tokenizer="byte", specials=SPECIALS):
    return prepare(source, trainer(tokenizer), specials)


def chunks_of(source):
    return list(split_chunks(source, [], hold_out(source)))


def text_corpus(text, tokenizer="byte", **changes):
    Path("text.txt").write_text(text)
    return corpus(source("text", path="text.txt", **changes), tokenizer)


def write_rows(path, rows):
    Path(path).write_text("".join(json.dumps(row) + "\n" for row in rows))


def loader(corpus, name="next_token", split="train", batch_size=4, seed=0, **options):
    kind = PairLoader if name == "pairs" else TokenLoader
    part = getattr(corpus, split)
    return kind(part, objective(name, **options), corpus.tokenizer, batch_size, seed)


def tensors(batch):
    return batch.inputs | {"targets": batch.targets}
