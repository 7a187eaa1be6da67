"""Where tokenizers come from: byte-level BPE, and the dict of the kinds that tokenizer= selects.
Each has train(texts, specials), where texts(include_val) yields the texts, from the beginning at
each call."""

import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

from configs.cli import print0
from configs.registry import Bounds, Count, Registry
from data.tokenizers.plain import ByteTrainer, CharTrainer, Pretrained, Tiktoken
from data.tokenizers.tokenizer import BytePairTokenizer, Texts, Tokenizer, assign_ids, to_base64

# GPT-2's: contractions, words, numbers, other characters, each with the space before; white space
PATTERN = r"""'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"""
MAX_WORD_CHARS = 256  # in training, which takes time quadratic in the length of a word


@dataclass
class BpeTrainer:
    """Byte-level BPE, trained on the first `train_mb` million characters of the training split."""

    vocab_size: Annotated[int, Bounds(most=1_000_000)]
    train_mb: Count

    def train(self, texts: Texts, specials: Sequence[str]) -> Tokenizer:
        least = 256 + len(specials)  # each byte is a token
        if self.vocab_size < least:
            raise ValueError(
                f"tokenizer.vocab_size is {self.vocab_size}; it must be at least {least}"
            )
        print0(f"training a tokenizer of {self.vocab_size:,} tokens ...", file=sys.stderr)
        # False: without the validation split
        first = take_chars(texts(False), self.train_mb * 10**6)
        tokens = train_bpe(first, self.vocab_size - len(specials))
        return BytePairTokenizer(PATTERN, to_base64(tokens), assign_ids(specials, len(tokens)))


def take_chars(texts: Iterable[str], n: int) -> Iterator[str]:
    """Yield texts until they have at least n characters in total, or all texts."""
    for text in texts:
        yield text
        n -= len(text)
        if n <= 0:
            return


def train_bpe(texts: Iterator[str], vocab_size: int) -> list[bytes]:
    """Train BPE and return the tokens: single bytes first, then in merge order."""
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    # every + of PATTERN is a quantifier: limit them all
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


def byte_level(*patterns: str) -> Any:
    """A pre-tokenizer that splits by each pattern in turn, and writes bytes as characters."""
    from tokenizers import Regex
    from tokenizers.pre_tokenizers import ByteLevel, Sequence, Split

    splits = [Split(Regex(pattern), "isolated") for pattern in patterns if pattern]
    return Sequence([*splits, ByteLevel(add_prefix_space=False, use_regex=False)])


def bytes_to_unicode() -> list[str]:
    """The character that stands for each byte in the vocabulary of a byte-level BPE: its own, if it
    is printable."""
    from tokenizers.pre_tokenizers import ByteLevel

    alphabet = ByteLevel.alphabet()
    others = map(chr, range(256, 512))
    return [chr(byte) if chr(byte) in alphabet else next(others) for byte in range(256)]


Trainer = ByteTrainer | CharTrainer | BpeTrainer | Tiktoken | Pretrained
TRAINERS = Registry(
    byte=ByteTrainer,
    char=CharTrainer,
    bpe=BpeTrainer,
    gpt2=partial(Tiktoken, encoding="gpt2"),
    cl100k=partial(Tiktoken, encoding="cl100k_base"),
    o200k=partial(Tiktoken, encoding="o200k_base"),
)
