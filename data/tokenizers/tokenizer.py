"""Tokenizer: text to ids and back. Its state is plain data and is saved with the weights.

Text is always text: `<|endoftext|>` in a document is thirteen characters. The ids of special tokens, such as
`end` between documents, never come out of encode().
"""

import base64
import codecs
import re
from functools import cache
from itertools import groupby
from threading import get_ident

import numpy as np

from configs.registry import Count, build
from data.tokenizers.limits import (
    MAX_STEPS,
    MAX_TEMPLATE,
    SAMPLE,
    as_tokenizer_error,
    check_json,
    require,
)

MAX_SPECIALS = 100_000
MAX_PENDING_IDS = 8  # ids that may wait for others to become text with them
NO_ID = 1 << 31  # beyond every vocabulary
Ids, Template, Files = dict[str, int], list[list[int]], dict[str, str]
NO_TEMPLATE = [[], []]  # ids before and after a prompt
SPECIAL_NAME = re.compile(r"[a-z]+(_\d+)?")
# a tokenizer in a Hugging Face folder, which export writes back
HF_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
)
HF_FILES += ("chat_template.jinja",)


def assign_ids(names, first):
    """{name: id} for special tokens, from the id `first` on."""
    return {name: first + i for i, name in enumerate(names)}


class Tokenizer:
    """Special ids follow the ordinary ones, and each ordinary id stands for some bytes."""

    state_fields = ()

    def __init__(self, n_ordinary, specials, vocab_size=None, template=NO_TEMPLATE, files=None):
        """`vocab_size`, `template` (ids before and after a prompt) and `files` are those of a pretrained
        model, which may have more rows than the tokenizer has ids, and two special tokens with one id."""
        first, ids = n_ordinary if self.kind != "hub" else 0, list(specials.values())
        stop = vocab_size or n_ordinary + MAX_SPECIALS
        if "end" not in specials or not all(SPECIAL_NAME.fullmatch(name) for name in specials):
            raise ValueError("special tokens have plain names, one of which is 'end'")
        if not all(first <= i < stop for i in ids):
            raise ValueError(f"special tokens need ids from {first} to {stop - 1}")
        if len(set(ids)) < len(ids) and vocab_size is None:
            raise ValueError("special tokens need different ids")
        self.n_ordinary, self.specials = (
            n_ordinary,
            specials,
        )  # ordinary ids, those of text, start at 0
        self.vocab_size = vocab_size or max(n_ordinary - 1, *ids) + 1
        self.names, self.template = {i: name for name, i in specials.items()}, template
        if len(template) != 2 or not all(
            0 <= i < self.vocab_size for side in template for i in side
        ):
            raise ValueError(f"template must be two lists of ids below {self.vocab_size}")
        require(
            sum(map(len, template)) <= MAX_TEMPLATE,
            f"the template has more than {MAX_TEMPLATE} ids",
        )
        self.files = files or {}
        self.text = self.files.get("tokenizer.json")
        if not self.files.keys() <= set(HF_FILES):
            raise ValueError(f"files must be among: {', '.join(HF_FILES)}")

    @property
    def end_ids(self):
        """All ids that end a text: `end`, and `end_1` and so on of models that have several."""
        return [
            self.specials["end"],
            *(i for name, i in self.specials.items() if name.startswith("end_")),
        ]

    def decode(self, ids):
        """The text, without special tokens."""
        return self.incremental_decoder()(ids, final=True)

    def decode_with_specials(self, ids):
        """The text, with special tokens by name, for printing only."""
        text = ""
        for special, run in groupby(ids, key=self.names.__contains__):
            run = list(run)
            text += "".join(f"<{self.names[i]}>" for i in run) if special else self.decode(run)
        return text

    def incremental_decoder(self, before=()):
        """A function from the next ids to the text that is certain by now, never half a character. `before`
        are the ids of the prompt, for tokenizers whose tokens join."""
        decoder = codecs.getincrementaldecoder("utf-8")("replace")

        def decode(ids, final=False):
            return decoder.decode(self.decode_bytes(i for i in ids if i < self.n_ordinary), final)

        return decode

    def state(self):
        optional = {"template": self.template} if any(self.template) else {}
        optional |= {"files": self.files} if self.files else {}
        fields = {name: getattr(self, name) for name in self.state_fields}
        return {"kind": self.kind, "specials": self.specials} | optional | fields


class ByteTokenizer(Tokenizer):
    kind = "byte"

    def __init__(self, specials: Ids):
        super().__init__(256, specials)

    def encode(self, text):
        return np.frombuffer(text.encode(), np.uint8)

    def decode_bytes(self, ids):
        return bytes(ids)


class CharTokenizer(Tokenizer):
    """One id for each character of the corpus, in the order of their code points."""

    kind, state_fields = "char", ("characters",)

    def __init__(self, characters: str, specials: Ids):
        if sorted(set(characters)) != list(characters):
            raise ValueError("characters must be sorted and different")
        super().__init__(len(characters), specials)
        self.characters = characters
        self.table = np.full(0x110000, -1, np.int32)
        self.table[[ord(c) for c in characters]] = np.arange(len(characters))

    def encode(self, text):
        ids = self.table[np.frombuffer(text.encode("utf-32-le"), np.uint32)]
        if len(ids) and ids.min() < 0:
            unknown, n = text[int(np.argmax(ids < 0))], len(self.characters)
            raise ValueError(
                f"{unknown!r} is not among the tokenizer's {n} characters; try tokenizer=bpe"
            )
        return ids

    def decode_bytes(self, ids):
        return "".join(self.characters[i] for i in ids).encode()


class BytePairTokenizer(Tokenizer):
    """BPE by tiktoken: `pattern` splits text into words, `ranks` are the tokens in merge order."""

    kind, state_fields = "bpe", ("pattern",)

    def __init__(self, pattern, ranks, specials, vocab_size=None, template=NO_TEMPLATE, files=None):
        import tiktoken

        super().__init__(len(ranks), specials, vocab_size, template, files)
        require(len(pattern) <= MAX_STEPS, f"the pattern has more than {MAX_STEPS:,} characters")
        self.pattern, self.ranks, self.explicit_vocab_size = pattern, ranks, vocab_size
        ids = {token: i for i, token in enumerate(ranks)}
        # never encoded, but tiktoken is 1.5 times as fast with special tokens to look for
        special = {f"<|{name}|>": i for name, i in specials.items()}
        ids[b""] = NO_ID  # of an empty match, at which tiktoken would panic
        settings = {"pat_str": pattern, "mergeable_ranks": ids, "special_tokens": special}
        # one for each thread: threads that share one take twice as long, waiting for its regex
        self.encoding_of = cache(lambda thread: tiktoken.Encoding("bpe", **settings))
        with as_tokenizer_error("the pattern cannot be used"):
            self.encoding_of(get_ident())
        is_lossless = self.decode(self.encode(SAMPLE)) == SAMPLE
        require(is_lossless, f"the pattern {pattern!r:.60} leaves out a part of a text")

    @classmethod
    def from_state(cls, pattern: str, ranks: list[str], specials: Ids, vocab_size: Count | None = None,
                   template: Template = NO_TEMPLATE, files: Files | None = None):  # fmt: skip
        tokens = [base64.b64decode(token, validate=True) for token in ranks]
        if len({b"", *tokens}) <= len(tokens) or not {bytes([b]) for b in range(256)} <= set(
            tokens
        ):
            raise ValueError("ranks must hold every single byte, no token twice and none empty")
        return cls(pattern, tokens, specials, vocab_size, template, files)

    def encode(self, text):
        with as_tokenizer_error(f"tokenizer.json cannot encode {text[:60]!r}"):
            ids = self.encoding_of(get_ident()).encode_to_numpy(text, disallowed_special=())
        is_empty = ids.size and ids.max() == NO_ID
        require(not is_empty, f"the pattern {self.pattern!r:.60} matches the empty string")
        return ids

    def decode_bytes(self, ids):
        return b"".join(self.ranks[i] for i in ids)

    def state(self):
        state = super().state() | {
            "ranks": [base64.b64encode(token).decode() for token in self.ranks]
        }
        return (
            state
            if self.explicit_vocab_size is None
            else state | {"vocab_size": self.explicit_vocab_size}
        )


class HubTokenizer(Tokenizer):
    """Any tokenizer of the `tokenizers` library, as its tokenizer.json: WordPiece, Unigram and so on. Its
    special tokens can have any ids."""

    kind, state_fields = "hub", ("text", "vocab_size")

    def __init__(self, text: str, specials: Ids, vocab_size: Count, template: Template = NO_TEMPLATE,
                 files: Files | None = None):  # fmt: skip
        super().__init__(vocab_size, specials, vocab_size, template, files)
        self.text, self.backend = text, load_hf_tokenizer(text)
        if (highest := max(self.backend.get_vocab().values(), default=0)) >= vocab_size:
            raise ValueError(
                f"the tokenizer has ids up to {highest}; the model's vocab_size is {vocab_size}"
            )

    def encode(self, text):
        with as_tokenizer_error(f"tokenizer.json cannot encode {text[:60]!r}"):
            return np.array(self.backend.encode(text, add_special_tokens=False).ids, np.int32)

    def decode_bytes(self, ids):
        return self.decode(ids).encode()

    def decode(self, ids):
        with as_tokenizer_error("tokenizer.json cannot decode"):
            return self.backend.decode(list(ids))

    def incremental_decoder(self, before=()):
        """Tokens may join in any way, so new ids are decoded together with the last that became text."""
        seen, new = list(before), []

        def decode(ids, final=False):
            nonlocal seen, new
            new = [*new[-MAX_PENDING_IDS:], *ids]
            shown, text = self.decode(seen), self.decode([*seen, *new])
            if text.endswith("\ufffd") and len(new) < MAX_PENDING_IDS and not final:
                return ""
            if len(text) > len(shown):
                seen, new = new, []
            return text[len(shown) :]

        return decode


def load_hf_tokenizer(text):
    """A tokenizer of the library that never parses special tokens out of text."""
    import tokenizers

    with as_tokenizer_error("not a valid tokenizer.json"):
        check_json(text)
        tokenizer = tokenizers.Tokenizer.from_str(text)
    tokenizer.encode_special_tokens = True
    tokenizer.post_processor = None  # one could repeat a text
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer


def tokenizer_from_state(state):
    """The tokenizer of a state(), which may come from an untrusted file: the constructors check it."""
    if not isinstance(state, dict):
        raise ValueError(f"not a tokenizer: {state!r:.60}")
    kinds = {kind.kind: kind for kind in (ByteTokenizer, CharTokenizer, HubTokenizer)}
    return build("tokenizer", kinds | {"bpe": BytePairTokenizer.from_state}, state, {})
