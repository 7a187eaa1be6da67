"""Tokenizer: text to ids and back. Its whole state is plain data, so it can travel with the weights.

Text is always text: `<|endoftext|>` in a document is thirteen characters. The special tokens, such as `end`
between documents, have ids that no text can produce.
"""

import base64
import codecs
import re

import numpy as np
import tiktoken

HELD = 8  # ids that may wait for others to become text with them
NO_TEMPLATE = [[], []]
PLAIN_NAME = re.compile(r"[a-z]+(_\d+)?")


def assign_ids(names, first):
    """{name: id} for special tokens from the id `first` on."""
    return {name: first + i for i, name in enumerate(names)}


class Tokenizer:
    """What all kinds share: special ids lie behind the ordinary ones, and each id stands for some bytes."""

    def __init__(self, n_ordinary, specials, template=NO_TEMPLATE):
        self.n_ordinary = n_ordinary  # ids that text can have, from 0
        self.specials = specials
        self.template = (
            template  # ids before and after a text that stands by itself, as published models learn it
        )
        self.vocab_size = max([n_ordinary - 1, *specials.values()]) + 1
        self.names = {i: name for name, i in specials.items()}

    def decode(self, ids):
        """The text, without special tokens."""
        return self.incremental_decoder()(ids, final=True)

    def decode_with_specials(self, ids):
        """The text, with special tokens by name: for the eye only."""
        shown, ordinary = "", []
        for i in ids:
            if i in self.names:
                shown += f"{self.decode(ordinary)}<{self.names[i]}>"
                ordinary = []
            else:
                ordinary.append(i)
        return shown + self.decode(ordinary)

    def incremental_decoder(self, before=()):
        """A function of the next ids, which gives the text that is certain by now: never half a character.
        `before` are ids that stand there already, for kinds whose pieces join."""
        decoder = codecs.getincrementaldecoder("utf-8")("replace")

        def text(ids, final=False):
            ordinary = (i for i in ids if i < self.n_ordinary)
            return decoder.decode(self.decode_bytes(ordinary), final)

        return text

    def state(self):
        told = {"template": self.template} if any(self.template) else {}
        return {"kind": self.kind, "specials": self.specials} | told


class ByteTokenizer(Tokenizer):
    kind = "byte"

    def __init__(self, specials):
        super().__init__(256, specials)

    def encode(self, text):
        return np.frombuffer(text.encode(), np.uint8)

    def decode_bytes(self, ids):
        return bytes(ids)


class CharTokenizer(Tokenizer):
    """One id for each character there was, in the order of their code points."""

    kind = "char"

    def __init__(self, characters, specials):
        super().__init__(len(characters), specials)
        self.characters = characters
        codes = np.array([ord(c) for c in characters])
        self.table = np.full(0x110000, -1, np.int32)
        self.table[codes] = np.arange(len(codes))

    def encode(self, text):
        ids = self.table[np.frombuffer(text.encode("utf-32-le"), np.uint32)]
        if len(ids) and ids.min() < 0:
            unseen = text[int(np.argmax(ids < 0))]
            raise ValueError(
                f"the character {unseen!r} is not among the {len(self.characters)} this tokenizer was made "
                "from; tokenizer=byte and tokenizer=bpe know every character"
            )
        return ids

    def decode_bytes(self, ids):
        return "".join(self.characters[i] for i in ids).encode()

    def state(self):
        return super().state() | {"characters": self.characters}


class BytePairTokenizer(Tokenizer):
    """Byte pair encoding, by tiktoken: `pattern` cuts text into words, `ranks` are the tokens in the order in
    which they are merged."""

    kind = "bpe"

    def __init__(self, pattern, ranks, specials, vocab_size=None, template=NO_TEMPLATE):
        super().__init__(len(ranks), specials, template)
        self.pattern, self.ranks, self.told = pattern, ranks, vocab_size
        self.vocab_size = vocab_size or self.vocab_size  # a model may have more rows than there are tokens
        # tiktoken encodes half as fast again where it has special tokens to look for, though none is allowed
        self.encoding = tiktoken.Encoding(
            "plainformer",
            pat_str=pattern,
            mergeable_ranks={token: i for i, token in enumerate(ranks)},
            special_tokens={f"<|{name}|>": i for name, i in specials.items()},
        )

    def encode(self, text):
        return self.encoding.encode_to_numpy(text, disallowed_special=())

    def decode_bytes(self, ids):
        return b"".join(self.ranks[i] for i in ids)

    def state(self):
        ranks = [base64.b64encode(token).decode() for token in self.ranks]
        told = {} if self.told is None else {"vocab_size": self.told}
        return super().state() | {"pattern": self.pattern, "ranks": ranks} | told


class HubTokenizer(Tokenizer):
    """Any tokenizer of the `tokenizers` library, as the JSON text in which it is published: WordPiece,
    Unigram and whatever else is none of ours. Its special tokens stand anywhere, and one may serve twice."""

    kind = "hub"

    def __init__(self, text, specials, vocab_size, template=NO_TEMPLATE):
        super().__init__(vocab_size, specials, template)
        self.vocab_size, self.text = vocab_size, text
        self.library = load_hf_tokenizer(text)

    def encode(self, text):
        try:
            return np.array(self.library.encode(text, add_special_tokens=False).ids, np.int32)
        except Exception as error:  # the library has no kind of its own
            raise ValueError(f"this tokenizer has no ids for {text!r:.60}: {error}") from None

    def decode_bytes(self, ids):
        return self.library.decode(list(ids)).encode()

    def decode(self, ids):
        return self.library.decode(list(ids))

    def incremental_decoder(self, before=()):
        """Pieces may join in ways of their own, so new ids are decoded behind the last that have become
        text."""
        seen, new = list(before), []

        def text(ids, final=False):
            nonlocal seen, new
            new = [*new[-HELD:], *ids]
            shown, whole = self.decode(seen), self.decode([*seen, *new])
            if whole.endswith("\ufffd") and len(new) < HELD and not final:
                return ""
            if len(whole) > len(shown):
                seen, new = new, []
            return whole[len(shown) :]

        return text

    def state(self):
        return super().state() | {"text": self.text, "vocab_size": self.vocab_size}


def load_hf_tokenizer(text):
    """A tokenizer of the library that takes text for text."""
    import tokenizers

    try:
        found = tokenizers.Tokenizer.from_str(text)
    except Exception as error:  # the library has no kind of its own
        raise ValueError(f"not the JSON of a tokenizer: {error}") from None
    found.encode_special_tokens = True
    found.no_padding()
    found.no_truncation()
    return found


SHAPES = {
    "byte": {},
    "char": {"characters": str},
    "bpe": {"pattern": str, "ranks": list},
    "hub": {"text": str, "vocab_size": int},
}
TOLD = {"vocab_size": int, "template": list}  # of some that were published


def tokenizer_from_state(state):
    """The tokenizer that said this state; anything else is refused."""
    options = dict(state) if isinstance(state, dict) else {}
    kind = options.pop("kind", None)
    told = {name: shape for name, shape in TOLD.items() if kind in ("bpe", "hub") and name in options}
    if kind not in list(SHAPES) or {k: type(v) for k, v in options.items()} != {
        "specials": dict,
        **SHAPES[kind],
        **told,
    }:
        raise ValueError(f"not the state of a tokenizer, whose kind is one of: {', '.join(SHAPES)}")
    check_names(options["specials"])
    if kind == "hub":
        return from_hub_state(options)
    if kind == "bpe":
        options["ranks"] = decoded(options["ranks"])
    n_ordinary = 256 if kind == "byte" else len(options.get("characters", options.get("ranks")))
    check_specials(options["specials"], n_ordinary, shared="vocab_size" in told)
    if "vocab_size" in told and options["vocab_size"] <= max(n_ordinary - 1, *options["specials"].values()):
        raise ValueError("not the state of a tokenizer: its vocab_size is smaller than its ids")
    if kind == "char" and sorted(set(options["characters"])) != list(options["characters"]):
        raise ValueError("a char tokenizer's characters stand in order, each once")
    try:
        tokenizer = {"byte": ByteTokenizer, "char": CharTokenizer, "bpe": BytePairTokenizer}[kind](**options)
        check_frame(tokenizer.template, tokenizer.vocab_size)
        return tokenizer
    except ValueError as error:  # a pattern that tiktoken cannot compile
        raise ValueError(f"not the state of a tokenizer: {error}") from None


def decoded(ranks):
    try:
        tokens = [base64.b64decode(token, validate=True) for token in ranks]
    except (ValueError, TypeError):
        raise ValueError("a bpe tokenizer's ranks are tokens in base64") from None
    if b"" in tokens or len(set(tokens)) < len(tokens) or not {bytes([b]) for b in range(256)} <= set(tokens):
        raise ValueError("a bpe tokenizer's ranks hold every single byte, no token twice and none empty")
    return tokens


def from_hub_state(options):
    tokenizer = HubTokenizer(**options)
    check_frame(tokenizer.template, tokenizer.vocab_size)
    ids = [*tokenizer.specials.values(), *tokenizer.library.get_vocab().values()]
    if min(ids) < 0 or max(ids) >= tokenizer.vocab_size:
        raise ValueError(
            f"the tokenizer has ids from {min(ids)} to {max(ids)} and the model {tokenizer.vocab_size} words"
        )
    return tokenizer


def check_names(specials):
    if "end" not in specials:
        raise ValueError("special tokens are an end, and others")
    ids = specials.values()
    if not all(PLAIN_NAME.fullmatch(name) for name in specials) or not all(type(i) is int for i in ids):
        raise ValueError("special tokens are plain names, each with its id")


def check_specials(specials, n_ordinary, shared=False):
    ids = list(specials.values())
    if (len(set(ids)) < len(ids) and not shared) or not all(
        n_ordinary <= i < n_ordinary + 100_000 for i in ids
    ):
        raise ValueError(f"special tokens have ids of their own behind the {n_ordinary} of the text")


def check_frame(template, vocab_size):
    if len(template) != 2 or not all(isinstance(side, list) for side in template):
        raise ValueError("a tokenizer's template is a list of ids before a text, and one of those after it")
    if odd := [i for side in template for i in side if type(i) is not int or not 0 <= i < vocab_size]:
        raise ValueError(f"a tokenizer's template has {odd[0]!r:.60}, which is none of its {vocab_size} ids")
