"""Tokenizers that are not trained here: bytes, characters, and those of published models."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy import ndarray

from configs.errors import DataError, errors_as
from data.tokenizers.tokenizer import (
    KINDS,
    BytePairTokenizer,
    Ids,
    State,
    Texts,
    Tokenizer,
    assign_ids,
    to_base64,
    tokenizer_from_state,
)


class ByteTokenizer(Tokenizer):
    kind = "byte"

    def __init__(self, specials: Ids):
        super().__init__(256, specials)

    def encode(self, text: str) -> ndarray:
        return np.frombuffer(text.encode(), np.uint8)

    def decode_bytes(self, ids: Iterable[int]) -> bytes:
        return bytes(ids)


class CharTokenizer(Tokenizer):
    """One id for each character of the corpus, in the order of their code points."""

    kind = "char"

    def __init__(self, characters: str, specials: Ids):
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
                f"{unknown!r} is not among the characters of the tokenizer; try tokenizer=bpe in a new run"
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


@dataclass
class Pretrained:
    """The tokenizer of a pretrained model, which is already trained."""

    state: State

    def train(self, texts: Texts, specials: Sequence[str]) -> Tokenizer:
        return tokenizer_from_state(self.state)


@dataclass
class Tiktoken:
    """The encodings of GPT-2 and its successors; <|endoftext|>, our `end`, keeps its id."""

    encoding: str

    def train(self, texts: Texts, specials: Sequence[str]) -> Tokenizer:
        import tiktoken_ext.openai_public as openai

        message = (
            f"cannot download the encoding {self.encoding}; connect once, set TIKTOKEN_CACHE_DIR to "
            "its folder or use tokenizer=bpe"
        )
        with errors_as(DataError, message):
            published = openai.ENCODING_CONSTRUCTORS[self.encoding]()

        id_of = published["mergeable_ranks"]
        ranks = to_base64(sorted(id_of, key=id_of.get))
        end = published["special_tokens"]["<|endoftext|>"]
        names = dict.fromkeys(["end", *specials])  # each once
        return BytePairTokenizer(published["pat_str"], ranks, assign_ids(names, end))


KINDS["byte"] = ByteTokenizer
KINDS["char"] = CharTokenizer
