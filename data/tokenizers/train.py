"""Where tokenizers come from: train(texts, specials) reads what it needs of texts(include_val)."""

from functools import partial
from typing import Annotated

import numpy as np

from configs.errors import DataError
from configs.registry import Bounds, Count
from data.tokenizers.tokenizer import BytePairTokenizer, ByteTokenizer, CharTokenizer, assign_ids

# GPT-2's: contractions, words, numbers, the rest, each with the space before it; runs of white space
PATTERN = r"""'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"""
MAX_WORD_CHARS = 256  # when tokens are learned: that takes time quadratic in the length of a word


class ByteTrainer:
    def train(self, texts, specials):
        return ByteTokenizer(assign_ids(specials, 256))


class CharTrainer:
    def train(self, texts, specials):
        seen = np.zeros(0x110000, bool)
        for text in texts(include_val=True):
            seen[np.frombuffer(text.encode("utf-32-le"), np.uint32)] = True
        characters = "".join(map(chr, np.flatnonzero(seen)))
        return CharTokenizer(characters, assign_ids(specials, len(characters)))


class BpeTrainer:
    """Byte-level BPE, trained on the first `train_mb` megabytes of the training split."""

    def __init__(self, vocab_size: Annotated[int, Bounds(most=1_000_000)], train_mb: Count):
        self.vocab_size, self.train_mb = vocab_size, train_mb

    def train(self, texts, specials):
        if self.vocab_size < (least := 256 + len(specials)):  # each byte is a token
            raise ValueError(
                f"tokenizer.vocab_size is {self.vocab_size}; it must be at least {least}"
            )
        texts = take_chars(texts(include_val=False), self.train_mb * 10**6)
        ranks = train_bpe(texts, self.vocab_size - len(specials))
        return BytePairTokenizer(PATTERN, ranks, assign_ids(specials, len(ranks)))


def take_chars(texts, n):
    for text in texts:
        yield text[:n]
        n -= len(text)
        if n <= 0:
            return


def train_bpe(texts, vocab_size):
    """The tokens: single bytes first, then in merge order."""
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = byte_level(PATTERN.replace("+", f"{{1,{MAX_WORD_CHARS}}}"))
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    byte_of = {char: byte for byte, char in enumerate(bytes_to_unicode())}
    vocab = tokenizer.get_vocab()
    return [bytes(byte_of[char] for char in token) for token in sorted(vocab, key=vocab.get)]


def byte_level(pattern):
    """A pre-tokenizer that splits by a pattern, if any, and writes bytes as printable characters."""
    from tokenizers import Regex
    from tokenizers.pre_tokenizers import ByteLevel, Sequence, Split

    split = [Split(Regex(pattern), "isolated")] if pattern else []
    return Sequence([*split, ByteLevel(add_prefix_space=False, use_regex=False)])


def bytes_to_unicode():
    """The printable character that stands for each byte in the vocabulary of a byte-level BPE."""
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = iter(range(256, 512))
    return [chr(byte) if byte in printable else chr(next(others)) for byte in range(256)]


class TiktokenPretrained:
    """The encodings of GPT-2 and its successors; <|endoftext|>, our `end`, keeps its id."""

    def __init__(self, kind, encoding):
        self.kind, self.encoding = kind, encoding

    def train(self, texts, specials):
        import tiktoken_ext.openai_public as openai

        try:
            published = openai.ENCODING_CONSTRUCTORS[self.encoding]()
        except OSError as error:  # requests' own are such, too
            ranks = f"the ranks of tokenizer={self.kind} ({type(error).__name__})"
            hint = "connect once, set TIKTOKEN_CACHE_DIR to their folder or use tokenizer=bpe"
            raise DataError(f"cannot download {ranks}; {hint}") from None
        ranks = sorted(published["mergeable_ranks"], key=published["mergeable_ranks"].get)
        end = published["special_tokens"]["<|endoftext|>"]
        others = [name for name in specials if name != "end"]
        return BytePairTokenizer(
            published["pat_str"], ranks, {"end": end, **assign_ids(others, end + 1)}
        )


PRETRAINED = {"gpt2": "gpt2", "cl100k": "cl100k_base", "o200k": "o200k_base"}
TOKENIZERS = {"byte": ByteTrainer, "char": CharTrainer, "bpe": BpeTrainer}
TOKENIZERS |= {
    kind: partial(TiktokenPretrained, kind=kind, encoding=e) for kind, e in PRETRAINED.items()
}
