"""Limits: what a tokenizer.json may claim of memory and time, since it may come from an untrusted folder.
Published ones stay far below."""

import base64
import json
from contextlib import contextmanager
from math import prod
from unicodedata import normalize

import numpy as np

from configs.errors import TokenizerError

MAX_GROWTH = 100  # of a text, by normalizer and pre-tokenizer, or by the decoder
MAX_STEPS = 20_000  # characters that describe these, without character maps
MAX_WORD, MAX_TOKEN = 256, 1000  # characters
MAX_TRIES = (
    5_000_000  # bytes of Unigram and added tokens, which take up to 350 times as much memory
)
MAX_TEMPLATE = 16  # ids around a prompt
MAX_REPLACEMENT = 20  # characters that a character map puts in place of one; NFKC's has up to 18
# types of steps that let a text grow by themselves, a ByteLevel to 4 bytes of 2 decomposed characters
GROWTH = {
    "BPEDecoder": 2,
    "BertNormalizer": 3,
    "ByteLevel": 8,
    "CTC": 2,
    "Metaspace": 2,
    "WordPiece": 2,
}
GROWTH["Precompiled"] = MAX_REPLACEMENT

SAMPLE = (
    "It's  a naïve Straße, 東京 — don't 1234567890 3.14e-10!\n\n\tdef f(x):\r\n        return x ** 2  # été\n"
    '\'Tis "so" e\u0301 \u00a0 \u2028 \U0001f642\U0001f468\u200d\U0001f469 Привет мир 你好 शब्द  end \n \n  '
)


@contextmanager
def as_tokenizer_error(reason):
    """Errors of the libraries become ours; panics of Rust, too, which are not an Exception."""
    try:
        yield
    except (TokenizerError, MemoryError):
        raise
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        is_ours = isinstance(error, LookupError | TypeError | AttributeError)
        detail = "a value is missing or of another type" if is_ours else error
        raise TokenizerError(f"{reason}: {detail}") from None


def require(condition, reason):
    if not condition:
        raise TokenizerError(reason)


def check_json(text):
    """Before the library reads it, for it normalizes the added tokens at once."""
    spec = json.loads(text, object_pairs_hook=check_object)
    model, times = spec["model"], check_steps(spec)
    require(not model.get("dropout"), "it has dropout, which makes ids random; set it to null")
    is_unigram, max_chars = (
        isinstance(model["vocab"], list),
        model.get("max_input_chars_per_word", 0),
    )
    tokens = [entry[0] for entry in model["vocab"]] if is_unigram else [*model["vocab"]]
    added = [token["content"] for token in spec.get("added_tokens") or []]
    names = [name for name in (*tokens, *added, *model.values()) if isinstance(name, str)]
    longest = (
        MAX_WORD if is_unigram else MAX_TOKEN
    )  # Unigram looks up every part of a text that is so long
    require(
        max(map(len, names), default=0) <= longest, f"a token has more than {longest} characters"
    )
    require(
        max_chars <= MAX_WORD,
        f"max_input_chars_per_word is {max_chars}; expected at most {MAX_WORD}",
    )
    n = len("".join(added).encode()) * times + is_unigram * len("".join(tokens).encode())
    require(n <= MAX_TRIES, f"the tokens have {n:,.0f} bytes; expected at most {MAX_TRIES:,}")
    prefix, merges = model.get("continuing_subword_prefix") or "", model.get("merges") or []
    seconds = (
        (merge.split(" ") if isinstance(merge, str) else merge)[-1] for merge in merges if prefix
    )
    require(
        all(second.startswith(prefix) for second in seconds),
        "a merge lacks continuing_subword_prefix",
    )


def check_object(pairs):
    node = dict(pairs)
    require(len(node) == len(pairs), "a key occurs twice")
    if node.get("type") == "Precompiled" or isinstance(node.get("precompiled_charsmap"), str):
        check_charsmap(base64.b64decode(node["precompiled_charsmap"], validate=True))
    return node


def check_charsmap(data):
    """The trie (https://github.com/s-yata/darts-clone) and the replacements, which end with NUL. No unit may
    lead out of the trie, or into a replacement."""
    size, damaged = int.from_bytes(data[:4], "little"), "precompiled_charsmap is damaged"
    require(0 < size <= len(data) - 4 and size % 1024 == 0, damaged)  # blocks of 256 units
    units, replacements = np.frombuffer(data[4 : 4 + size], "<u4"), data[4 + size :]
    is_leaf = units >> 31 == 1
    is_leaf[0] = False  # the root
    targets = np.arange(len(units)) ^ ((units >> 10) << ((units & 512) >> 6))
    require(targets[~is_leaf].max() < len(units), damaged)
    values = units[targets[~is_leaf & (units & 256 > 0)]] & 0x7FFFFFFF
    is_start = np.frombuffer(b"\0" + replacements, np.uint8) == 0
    require(values.max(initial=0) < len(is_start) and is_start[values].all(), damaged)
    longest = max(len(normalize("NFKD", text)) for text in replacements.decode().split("\0"))
    require(longest <= MAX_REPLACEMENT, f"precompiled_charsmap replaces a character by {longest}")


def check_steps(spec):
    """How many times as long a text may be once normalized. The library guesses missing types, so it is asked
    what it has read."""
    from tokenizers import Tokenizer

    parts = {name: spec.get(name) for name in ("normalizer", "pre_tokenizer", "decoder")}
    model = {"type": "BPE", "vocab": {}, "merges": []}
    read = json.loads(
        Tokenizer.from_str(json.dumps({"version": "1.0", "model": model, **parts})).to_str()
    )
    normalizer, pre_tokenizer, decoder = (flatten(read[name]) for name in parts)
    steps = [step | {"precompiled_charsmap": 0} for step in (*normalizer, *pre_tokenizer, *decoder)]
    require(
        len(json.dumps(steps)) <= MAX_STEPS,
        "its normalizer, pre-tokenizer and decoder are too long",
    )
    require(all(step.get("length") != 0 for step in steps), "FixedLength has length 0")
    n = max(prod(map(growth, (*normalizer, *pre_tokenizer))), prod(map(growth, decoder)))
    require(
        n <= MAX_GROWTH,
        f"it can make a text {n:.3g} times as long; expected at most {MAX_GROWTH} times",
    )
    return prod(map(growth, normalizer))


def flatten(node):
    if not node or node["type"] != "Sequence":
        return [node] if node else []
    children = next(value for value in node.values() if isinstance(value, list))
    return [step for child in children for step in flatten(child)]


def growth(step):
    """How many times as long a text gets at most, in decomposed characters: Unicode's normal forms of a text
    have equally many."""
    content = len(normalize("NFKD", step.get("content") or step.get("prepend") or ""))
    literal = len(step.get("pattern", {}).get("String", ""))
    factor = (
        max(1, content / literal) if literal else 1 + content
    )  # a regex may match between all characters
    return factor * GROWTH.get(step["type"], 1)
