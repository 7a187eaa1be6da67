"""Tokenizers that are not trained: bytes, and characters."""

from collections.abc import Iterable, Sequence

import numpy as np
from numpy import ndarray

from data.tokenizers.tokenizer import KINDS, Ids, Texts, Tokenizer, assign_ids


class ByteTokenizer(Tokenizer):
    kind = "byte"

    def __init__(self, specials: Ids) -> None:
        super().__init__(256, specials)

    def encode(self, text: str) -> ndarray:
        return np.frombuffer(text.encode(), np.uint8)

    def decode_bytes(self, ids: Iterable[int]) -> bytes:
        return bytes(ids)


class CharTokenizer(Tokenizer):
    """One id for each character of the corpus, in the order of their code points."""

    kind = "char"

    def __init__(self, characters: str, specials: Ids) -> None:
        super().__init__(len(characters), specials)
        self.characters = characters
        self.table = np.full(0x110000, -1, np.int32)
        self.table[list(map(ord, characters))] = np.arange(len(characters))

    def encode(self, text: str) -> ndarray:
        codes = np.frombuffer(text.encode("utf-32-le"), np.uint32)
        ids = self.table[codes]
        if len(ids) and ids.min() < 0:
            unknown = text[int(np.argmax(ids < 0))]
            raise ValueError(
                f"{unknown!r} is not among the characters of the tokenizer; try tokenizer=bpe"
            )
        return ids

    def decode_bytes(self, ids: Iterable[int]) -> bytes:
        return "".join(self.characters[i] for i in ids).encode()


class ByteTrainer:
    def train(self, texts: Texts, specials: Sequence[str]) -> Tokenizer:
        return ByteTokenizer(assign_ids(specials, 256))


class CharTrainer:
    def train(self, texts: Texts, specials: Sequence[str]) -> Tokenizer:
        seen: set[str] = set()
        for text in texts(True):
            seen.update(text)
        characters = "".join(sorted(seen))
        return CharTokenizer(characters, assign_ids(specials, len(characters)))


KINDS["byte"] = ByteTokenizer
KINDS["char"] = CharTokenizer
