"""Byte-level BPE: run by tiktoken, trained by the library `tokenizers`."""

import base64
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from threading import get_ident
from typing import Annotated, Any

from numpy import ndarray

from configs.registry import Bounds, Count
from data.tokenizers.tokenizer import Ids, State, Tokenizer, assign_ids
from data.tokenizers.train import Texts

# GPT-2's: contractions, words, numbers, the rest, each with the space before it; white space
PATTERN = r"""'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"""
MAX_WORD_CHARS = 256  # when tokens are learned: that takes time quadratic in the length of a word


class BytePairTokenizer(Tokenizer):
    """BPE by tiktoken: `pattern` splits text into words, `ranks` are the tokens in merge order."""

    kind = "bpe"

    def __init__(
        self, pattern: str, ranks: list[str], specials: Ids, vocab_size: Count | None = None
    ) -> None:
        """`ranks` are in base64."""
        import tiktoken

        super().__init__(len(ranks), specials, vocab_size)
        self.pattern = pattern
        self.ranks = ranks
        self.tokens = [base64.b64decode(token) for token in ranks]

        settings: State = {
            "pat_str": pattern,
            "mergeable_ranks": {token: i for i, token in enumerate(self.tokens)},
            # never encoded, but tiktoken is 1.5 times as fast with special tokens to look for
            "special_tokens": {f"<|{name}|>": i for name, i in specials.items()},
        }
        # by the id of a thread: threads that share one take twice as long, waiting for its regex
        self.encoding_of = cache(lambda thread: tiktoken.Encoding("bpe", **settings))

    def encode(self, text: str) -> ndarray:
        return self.encoding_of(get_ident()).encode_to_numpy(text, disallowed_special=())

    def decode_bytes(self, ids: Iterable[int]) -> bytes:
        return b"".join(self.tokens[i] for i in ids)


def to_base64(tokens: Iterable[bytes]) -> list[str]:
    return [base64.b64encode(token).decode() for token in tokens]


@dataclass
class BpeTrainer:
    """Byte-level BPE, trained on the first `train_mb` megabytes of the training split."""

    vocab_size: Annotated[int, Bounds(most=1_000_000)]
    train_mb: Count

    def train(self, texts: Texts, specials: Sequence[str]) -> Tokenizer:
        least = 256 + len(specials)  # each byte is a token
        if self.vocab_size < least:
            raise ValueError(
                f"tokenizer.vocab_size is {self.vocab_size}; it must be at least {least}"
            )

        first = take_chars(texts(False), self.train_mb * 10**6)
        tokens = train_bpe(first, self.vocab_size - len(specials))
        return BytePairTokenizer(PATTERN, to_base64(tokens), assign_ids(specials, len(tokens)))


def take_chars(texts: Iterable[str], n: int) -> Iterator[str]:
    """Texts of at least n characters in all, if there are so many."""
    for text in texts:
        yield text
        n -= len(text)
        if n <= 0:
            return


def train_bpe(texts: Iterator[str], vocab_size: int) -> list[bytes]:
    """The tokens: single bytes first, then in merge order."""
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    # each + repeats something
    tokenizer.pre_tokenizer = byte_level(PATTERN.replace("+", f"{{1,{MAX_WORD_CHARS}}}"))
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    byte_of = {char: byte for byte, char in enumerate(bytes_to_unicode())}
    id_of = tokenizer.get_vocab()
    tokens = sorted(id_of, key=id_of.__getitem__)
    return [bytes(byte_of[char] for char in token) for token in tokens]


def byte_level(pattern: str) -> Any:
    """A pre-tokenizer that splits by a pattern, if any, and writes bytes as characters."""
    from tokenizers import Regex
    from tokenizers.pre_tokenizers import ByteLevel, Sequence, Split

    split = [Split(Regex(pattern), "isolated")] if pattern else []
    return Sequence([*split, ByteLevel(add_prefix_space=False, use_regex=False)])


def bytes_to_unicode() -> list[str]:
    """The printable character that stands for each byte in the vocabulary of a byte-level BPE."""
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = iter(range(256, 512))
    codes = [byte if byte in printable else next(others) for byte in range(256)]
    return list(map(chr, codes))
