"""Tokenizer: text to ids and back. The state of one is plain data and is saved with the weights.

Text is always text: `<|endoftext|>` in a document is thirteen characters. The ids of special
tokens, such as `end` between documents, never come out of encode().
"""

import codecs
import re
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from typing import Any

import numpy as np
from numpy import ndarray

from configs.registry import Registry, build, signature

Ids = dict[str, int]
State = dict[str, Any]
Template = list[list[int]]
NO_TEMPLATE: Template = [[], []]
SPLIT = "tokenizer_config.json has split_special_tokens: true; set it to false and import again"
Decoder = Callable[..., str]  # of the next ids, and of final=True for the last


def assign_ids(names: Iterable[str], first: int) -> Ids:
    """{name: id} for special tokens, from the id `first` on."""
    return {name: first + i for i, name in enumerate(names)}


class Tokenizer:
    """Ordinary ids, those of text, are below `n_ordinary`; special ids follow them. In an imported
    tokenizer special ids may lie anywhere, and `n_ordinary` is the size of the vocabulary."""

    kind: str
    # of an imported tokenizer
    template = NO_TEMPLATE  # ids before and after a prompt
    text: str | None = None  # tokenizer.json; None if it was made here
    splits_specials = False  # whether special tokens in a text are never parsed
    date: str | None = None  # of the conversations that it was fine-tuned on

    def __init__(self, n_ordinary: int, specials: Ids, vocab_size: int | None = None) -> None:
        self.n_ordinary = n_ordinary
        self.specials = specials
        # if several share an id, the first of them
        self.names = {i: name for name, i in reversed(specials.items())}
        self.vocab_size = vocab_size or max(n_ordinary, *(i + 1 for i in self.names))
        self.files: dict[str, str] = {}  # other files of an imported tokenizer

    def encode(self, text: str) -> ndarray:
        raise NotImplementedError

    def decode_bytes(self, ids: Iterable[int]) -> bytes:
        raise NotImplementedError

    @property
    def end_ids(self) -> list[int]:
        """All ids that end a text: `end`, and `end_1` and so on of models that have several."""
        others = [i for name, i in self.specials.items() if name.startswith("end_")]
        return [self.specials["end"], *others]

    @property
    def start(self) -> int:
        """What a target begins with; GPT-2, for one, has no token for that alone."""
        return self.specials.get("start", self.specials["end"])

    @property
    def pad(self) -> int:
        """What fills a row. Any token may, for neither losses nor other tokens see it."""
        return self.specials.get("pad", self.specials["end"])

    def decode(self, ids: Iterable[int]) -> str:
        """The text, without special tokens."""
        return self.incremental_decoder()(ids, final=True)

    def decode_with_specials(self, ids: Iterable[int]) -> str:
        """The text, with special tokens, for printing only."""
        text = ""
        for name, run in groupby(ids, key=self.names.get):
            if name:
                text += f"<{name}>" * len(list(run))
            else:
                text += self.decode(run)
        return text

    def special_texts(self) -> dict[int, str]:
        """{id of a special token: how it is written}"""
        return {i: f"<|{name}|>" for i, name in self.names.items()}

    def encode_specials(self, text: str) -> tuple[list[int], list[int]]:
        """(ids, the character at which each begins) of a text in which special tokens are written
        out."""
        special = {written: i for i, written in self.special_texts().items()}
        ids: list[int] = []
        begins = [0]  # in bytes, of each id and of what follows them
        for piece in re.split(r"(<\|\w+\|>)", text):
            is_special = piece in special
            for i in [special[piece]] if is_special else self.encode(piece).tolist():
                token = piece if is_special else self.decode_bytes([i])
                ids.append(i)
                begins.append(begins[-1] + len(token))

        utf8 = np.frombuffer(text.encode(), np.uint8)
        is_continuation = (utf8 & 0b11000000) == 0b10000000
        character_of_byte = np.cumsum(~is_continuation) - 1
        return ids, character_of_byte[begins[:-1]].tolist()

    def incremental_decoder(self, before: Sequence[int] = ()) -> Decoder:
        """A function from the next ids to the text that is certain by now, never half a
        character. `before` are ids of which the text is known, for tokenizers whose tokens join."""
        decoder = codecs.getincrementaldecoder("utf-8")("replace")

        def decode(ids: Iterable[int], final: bool = False) -> str:
            ordinary = [i for i in ids if i < self.n_ordinary]
            return decoder.decode(self.decode_bytes(ordinary), final)

        return decode

    def state(self) -> State:
        """Plain data, from which tokenizer_from_state() makes the same tokenizer. Each kind keeps
        the arguments of its __init__ as attributes of the same names."""
        state: State = {"kind": self.kind, "specials": self.specials}
        kind: Any = type(self)
        arguments = signature(kind)
        return state | {name: getattr(self, name) for name in arguments}


KINDS: Registry[type[Tokenizer]] = Registry(
    byte="data.tokenizers.small:ByteTokenizer",
    char="data.tokenizers.small:CharTokenizer",
    bpe="data.tokenizers.bpe:BytePairTokenizer",
    hub="data.tokenizers.imported:HubTokenizer",
)


def tokenizer_from_state(state: State) -> Tokenizer:
    return build("tokenizer", KINDS, state, {})
