"""What the tests of data share: small corpora, built on the spot."""

from contextlib import nullcontext
from unittest.mock import patch

from configs.registry import build
from data.loader import PairLoader, TokenLoader
from data.objectives import OBJECTIVES
from data.prepare import prepare
from data.sources import SOURCES
from data.tokenizers.train import TOKENIZERS
from tests.parts import part


def source(name, /, **changes):
    shared = {"cache": "", "val_fraction": 0.05}
    return build("data", SOURCES, shared | part("data", name, **changes), {})


def trainer(name="byte", **changes):
    return build("tokenizer", TOKENIZERS, part("tokenizer", name, **changes), {})


def objective(name, context_length=16, architecture="decoder", **changes):
    shared = {"context_length": context_length, "architecture": architecture}
    return build("objective", OBJECTIVES, part("objective", name, **changes), shared)


def corpus(
    folder,
    source,
    *,
    specials=("end", "pad", "start", "mask"),
    tokenizer="byte",
    val_fraction=0.05,
    report=lambda n_bytes: None,
):
    source.cache = str(folder / "cache")
    source.val_fraction = val_fraction
    with patch("data.prepare.progress_bar", lambda total: nullcontext(report)):
        return prepare(source, trainer(tokenizer), specials)


def text_corpus(folder, text, **options):
    (folder / "text.txt").write_text(text)
    return corpus(folder, source("text", path=str(folder / "text.txt")), **options)


def loader(part, tokenizer, name="next_token", *, batch_size=4, seed=0, weights=None, **options):
    kind = PairLoader if name == "pairs" else TokenLoader
    return kind(part, objective(name, **options), tokenizer, batch_size, seed, weights or {})


def tensors(batch):
    return batch.inputs | {"targets": batch.targets}
