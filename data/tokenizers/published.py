"""Tokenizers that others have trained."""

from collections.abc import Sequence
from dataclasses import dataclass

from configs.errors import DataError, errors_as
from data.tokenizers.tokenizer import (
    BytePairTokenizer,
    State,
    Texts,
    Tokenizer,
    assign_ids,
    to_base64,
    tokenizer_from_state,
)


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

        hint = "connect once, set TIKTOKEN_CACHE_DIR to its folder or use tokenizer=bpe"
        with errors_as(DataError, f"cannot download the encoding {self.encoding}; {hint}"):
            published = openai.ENCODING_CONSTRUCTORS[self.encoding]()
        id_of = published["mergeable_ranks"]
        ranks = to_base64(sorted(id_of, key=id_of.get))
        end = published["special_tokens"]["<|endoftext|>"]
        others = [name for name in specials if name != "end"]
        ids = {"end": end} | assign_ids(others, end + 1)
        return BytePairTokenizer(published["pat_str"], ranks, ids)
