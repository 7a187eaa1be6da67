"""Tokenizer: text to ids and back. Its state is plain data and is saved with the weights.

Text is always text: `<|endoftext|>` in a document is thirteen characters. encode() never returns
the ids of special tokens, such as `end` between documents.
"""

import base64
import codecs
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from itertools import groupby
from threading import get_ident
from typing import Any

import numpy as np
from numpy import ndarray

from configs.registry import Count, Registry, build, parameters_of

SPLIT = "tokenizer_config.json has split_special_tokens: true; set it to false and import again"
Ids = dict[str, int]
State = dict[str, Any]
Template = list[list[int]]
NO_TEMPLATE: Template = [[], []]
Texts = Callable[[bool], Iterator[str]]  # of the training split, or of both splits
Decoder = Callable[..., str]  # takes the next ids, and final=True with the last ones


def assign_ids(names: Iterable[str], first: int) -> Ids:
    """{name: id} for special tokens, starting at the id `first`."""
    return {name: first + i for i, name in enumerate(names)}


class Tokenizer:
    """Ordinary ids, those of text, are below `n_ordinary`; special ids follow. In an imported
    tokenizer special ids may be anywhere, and `n_ordinary` is the vocabulary size."""

    kind: str
    # of an imported tokenizer
    template = NO_TEMPLATE  # ids before and after a prompt
    text: str | None = None  # tokenizer.json; None if it was made here
    splits_specials = False  # if true, special tokens in a text are never parsed
    date: str | None = None  # of the conversations that it was fine-tuned on

    def __init__(self, n_ordinary: int, specials: Ids, vocab_size: int | None = None):
        self.n_ordinary = n_ordinary
        self.specials = specials
        # if several share an id, the first name
        self.names = {i: name for name, i in reversed(specials.items())}
        self.vocab_size = vocab_size or max(n_ordinary, *(i + 1 for i in self.names))
        self.files: dict[str, str] = {}  # other files of an imported tokenizer

    def encode(self, text: str) -> ndarray:
        raise NotImplementedError

    def decode_bytes(self, ids: Iterable[int]) -> bytes:
        raise NotImplementedError

    @property
    def end_ids(self) -> list[int]:
        """All ids that end a text: `end`, and `end_1` and so on for models that have several."""
        others = [i for name, i in self.specials.items() if name.startswith("end_")]
        return [self.specials["end"], *others]

    @property
    def start(self) -> int:
        """The id that begins a target; GPT-2, for one, has no token only for that."""
        return self.specials.get("start", self.specials["end"])

    @property
    def pad(self) -> int:
        """The id that pads a row. Any token would do: neither losses nor other tokens see it."""
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
        """Returns {id of a special token: how it is written}."""
        return {i: f"<|{name}|>" for i, name in self.names.items()}

    def encode_specials(self, text: str) -> tuple[list[int], list[int]]:
        """Returns (ids, the character at which each begins) for a text in which special tokens are
        written out, such as <|end|> in a chat template."""
        written = self.special_texts()
        id_of = {piece: i for i, piece in written.items()}
        ids: list[int] = []
        for piece in re.split(r"(<\|\w+\|>)", text):
            ids += [id_of[piece]] if piece in id_of else self.encode(piece).tolist()
        tokens = [written[i].encode() if i in written else self.decode_bytes([i]) for i in ids]
        utf8 = np.frombuffer(b"".join(tokens), np.uint8)
        character_of_byte = np.cumsum((utf8 & 0b11000000) != 0b10000000) - 1
        begins = np.cumsum([0, *map(len, tokens)])[:-1]
        return ids, character_of_byte[begins].tolist()

    def incremental_decoder(self, before: Sequence[int] = ()) -> Decoder:
        """A function from the next ids to the text that is final, never half a character. `before`
        are ids whose text is already known, for tokenizers whose tokens join."""
        decoder = codecs.getincrementaldecoder("utf-8")("replace")

        def decode(ids: Iterable[int], final: bool = False) -> str:
            ordinary = [i for i in ids if i < self.n_ordinary]
            return decoder.decode(self.decode_bytes(ordinary), final)

        return decode

    def state(self) -> State:
        """Plain data from which tokenizer_from_state() makes the same tokenizer. Each kind keeps
        the arguments of its __init__ as attributes of the same names."""
        state = {"kind": self.kind, "specials": self.specials}
        arguments = parameters_of(KINDS[self.kind])
        return state | {name: getattr(self, name) for name in arguments}


class BytePairTokenizer(Tokenizer):
    """BPE by tiktoken: `pattern` splits text into words, `ranks` are the tokens in merge order."""

    kind = "bpe"

    def __init__(
        self, pattern: str, ranks: list[str], specials: Ids, vocab_size: Count | None = None
    ):
        """`ranks` are in base64."""
        import tiktoken

        super().__init__(len(ranks), specials, vocab_size)
        self.pattern = pattern
        self.ranks = ranks
        self.tokens = [base64.b64decode(token) for token in ranks]
        settings: State = {
            "pat_str": pattern,
            "mergeable_ranks": {token: i for i, token in enumerate(self.tokens)},
            # never encoded, but tiktoken is 1.5 times as fast if it has special tokens to look for
            "special_tokens": {f"<|{name}|>": i for name, i in specials.items()},
        }
        # one per thread id: threads that share one take twice as long, waiting for its regex
        self.encoding_of = cache(lambda thread: tiktoken.Encoding("bpe", **settings))

    def encode(self, text: str) -> ndarray:
        return self.encoding_of(get_ident()).encode_to_numpy(text, disallowed_special=())

    def decode_bytes(self, ids: Iterable[int]) -> bytes:
        return b"".join(self.tokens[i] for i in ids)


def to_base64(tokens: Iterable[bytes]) -> list[str]:
    return [base64.b64encode(token).decode() for token in tokens]


KINDS: Registry = Registry(bpe=BytePairTokenizer)  # plain.py and imported.py have the others


def tokenizer_from_state(state: State) -> Tokenizer:
    return build("tokenizer", KINDS, state)
