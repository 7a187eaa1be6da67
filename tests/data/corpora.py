"""What the tests of data share: small corpora made on the spot."""

from configs.registry import build
from data import OBJECTIVES, SOURCES, TOKENIZERS, batches, prepare
from tests.parts import part


def options_of(group, name):
    """What a yaml sets, with what it inherits from its neighbour."""
    options = part(group, name)
    above = [base for base in options.pop("defaults", []) if base != "_self_"]
    options.pop("validation", None)  # an option of the split, not of a source
    return {k: v for base in above for k, v in options_of(group, base).items()} | options


def source(name, /, cache="", **changes):
    return build("data", SOURCES, options_of("data", name) | changes, {"cache": cache})


def vocabulary(name="byte", **changes):
    return build("tokenizer", TOKENIZERS, part("tokenizer", name, **changes), {})


def objective(name, context_length=16, architecture="decoder", **changes):
    shared = {"context_length": context_length, "architecture": architecture}
    return build("objective", OBJECTIVES, part("objective", name, **changes), shared)


def corpus(
    folder, found, *, specials=("end", "pad", "start", "mask"), words="byte", validation=0.05, report=None
):
    return prepare(
        found, vocabulary(words), specials, cache=folder / "cache", validation=validation, report=report
    )


def text_corpus(folder, text, **options):
    (folder / "text.txt").write_text(text)
    return corpus(folder, source("text", path=str(folder / "text.txt")), **options)


def stream(part, tokenizer, name="next_token", *, batch_size=4, seed=0, **options):
    return batches(part, objective(name, **options), tokenizer, batch_size=batch_size, seed=seed)
