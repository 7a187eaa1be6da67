"""Vocabulary: where the tokens of each kind of tokenizer come from.

`make(texts, specials)` reads the texts it needs; `texts(whole)` gives those of training, or also those of
validation.
"""

from functools import partial
from typing import Annotated

import numpy as np
import tiktoken_ext.openai_public as published

from configs.errors import DataError
from configs.registry import Bounds, Count
from data.tokenizers.tokenizer import (
    BytePairTokenizer,
    ByteTokenizer,
    CharTokenizer,
    assign_ids,
    tokenizer_from_state,
)

MAX_VOCAB = 1_000_000
# GPT-2's: contractions, words, numbers, the rest, each with the space before it; runs of white space
PATTERN = r"""'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"""


class ByteTrainer:
    def make(self, texts, specials):
        return ByteTokenizer(assign_ids(specials, 256))


class CharTrainer:
    def make(self, texts, specials):
        seen = np.zeros(0x110000, bool)
        for text in texts(whole=True):
            seen[np.frombuffer(text.encode("utf-32-le"), np.uint32)] = True
        characters = "".join(map(chr, np.flatnonzero(seen)))
        return CharTokenizer(characters, assign_ids(specials, len(characters)))


class BpeTrainer:
    """Trained on the texts of training, as far as their first `train_mb` megabytes."""

    def __init__(self, vocab_size: Annotated[int, Bounds(most=MAX_VOCAB)], train_mb: Count):
        self.vocab_size, self.train_mb = vocab_size, train_mb

    def make(self, texts, specials):
        n_ordinary = self.vocab_size - len(specials)
        if n_ordinary < 256:
            raise ValueError(
                f"tokenizer.vocab_size is {self.vocab_size}; it must be at least {256 + len(specials)}: "
                f"256 bytes and {len(specials)} special tokens"
            )
        ranks = train_bpe(take_chars(texts(whole=False), self.train_mb * 10**6), n_ordinary)
        return BytePairTokenizer(PATTERN, ranks, assign_ids(specials, len(ranks)))


def take_chars(texts, n_characters):
    for text in texts:
        yield text[:n_characters]
        n_characters -= len(text)
        if n_characters <= 0:
            return


def train_bpe(texts, size):
    """The tokens of a byte pair encoding, single bytes first, then in the order of their merges."""
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PATTERN), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=size, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(texts, trainer)
    byte_of = {letter: byte for byte, letter in enumerate(bytes_to_unicode())}
    tokens = sorted(tokenizer.get_vocab().items(), key=lambda item: item[1])
    return [bytes(byte_of[letter] for letter in token) for token, _ in tokens]


def bytes_to_unicode():
    """The printable letter that stands for each byte in the vocabulary files of byte-level encodings."""
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = iter(range(256, 512))
    return [chr(byte) if byte in printable else chr(next(others)) for byte in range(256)]


class FromState:
    """A tokenizer that travels with the weights of a model."""

    def __init__(self, state):
        self.state = state

    def make(self, texts, specials):
        tokenizer = tokenizer_from_state(self.state)
        if missing := [name for name in specials if name not in tokenizer.specials]:
            raise ValueError(
                f"this objective needs the special token {missing[0]!r}, and the tokenizer that comes with "
                f"the model has {', '.join(tokenizer.specials)}"
            )
        return tokenizer


class TiktokenPretrained:
    """The encodings of GPT-2 and its successors: `end` keeps its published id."""

    def __init__(self, kind, encoding):
        self.kind, self.encoding = kind, encoding

    def make(self, texts, specials):
        import requests

        try:
            known = published.ENCODING_CONSTRUCTORS[self.encoding]()
        except (requests.RequestException, OSError) as error:
            raise DataError(
                f"tokenizer={self.kind} needs its published ranks, and they cannot be fetched "
                f"({type(error).__name__}): connect once, set TIKTOKEN_CACHE_DIR to a folder "
                "that holds them, or choose tokenizer=bpe"
            ) from None
        ranks = sorted(known["mergeable_ranks"], key=known["mergeable_ranks"].get)
        end = known["special_tokens"]["<|endoftext|>"]
        others = [name for name in specials if name != "end"]
        return BytePairTokenizer(known["pat_str"], ranks, {"end": end, **assign_ids(others, end + 1)})


TOKENIZERS = {
    "byte": ByteTrainer,
    "char": CharTrainer,
    "bpe": BpeTrainer,
    "gpt2": partial(TiktokenPretrained, kind="gpt2", encoding="gpt2"),
    "cl100k": partial(TiktokenPretrained, kind="cl100k", encoding="cl100k_base"),
    "o200k": partial(TiktokenPretrained, kind="o200k", encoding="o200k_base"),
}
