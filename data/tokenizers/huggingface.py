"""Tokenizers to and from tokenizer.json, the format of the `tokenizers` library, with the same
ids."""

import json
import re
from itertools import pairwise
from typing import Any

import numpy as np

from data.tokenizers.tokenizer import (
    NO_TEMPLATE,
    BytePairTokenizer,
    CharTokenizer,
    HubTokenizer,
    Ids,
    Template,
    Tokenizer,
    imported,
    load_hf_tokenizer,
    to_base64,
)
from data.tokenizers.train import PATTERN, byte_level, bytes_to_unicode

SAMPLE = (
    "It's  a naïve Straße, 東京 — don't 1234567890 3.14e-10!\n\n"
    "\tdef f(x):\r\n        return x ** 2  # été\n"
    '\'Tis "so" e\u0301 \u00a0 \u2028 \U0001f642\U0001f468\u200d\U0001f469 '
    "Привет мир 你好 शब्द  end \n \n  "
)


def to_hf(tokenizer: Tokenizer) -> tuple[str, dict[str, str]]:
    """(tokenizer.json, {name of a special token: how it is written there})"""
    text = tokenizer.text or new_json(tokenizer)
    library = load_hf_tokenizer(text)
    names = {name: library.id_to_token(i) for name, i in tokenizer.specials.items()}
    return text, {name: token for name, token in names.items() if token is not None}


def new_json(tokenizer: Tokenizer) -> str:
    """The tokenizer.json of a tokenizer that was made here."""
    from tokenizers import AddedToken, decoders, models
    from tokenizers import Tokenizer as Library

    if isinstance(tokenizer, CharTokenizer):
        tokens = list(tokenizer.characters)
        merges = []
    else:
        char_of = bytes_to_unicode()
        ranks = getattr(tokenizer, "ranks", [bytes([byte]) for byte in range(256)])
        tokens = ["".join(char_of[byte] for byte in token) for token in ranks]
        merges = merges_of(tokens)

    vocab = {token: i for i, token in enumerate(tokens)}
    names = {f"<|{name}|>": i for name, i in tokenizer.specials.items()}
    library = Library(models.BPE(vocab | names, merges, ignore_merges=True))
    library.add_special_tokens([AddedToken(name, normalized=False) for name in names])

    if isinstance(tokenizer, CharTokenizer):
        library.decoder = decoders.Fuse()
    else:
        # the library reads the possessive {1,3}+ as a repeated repetition
        pattern = re.sub(r"(\{\d+,\d+\})\+", r"\1", getattr(tokenizer, "pattern", ""))
        library.pre_tokenizer = byte_level(pattern)
        library.decoder = decoders.ByteLevel()

    return library.to_str()


def merges_of(tokens: list[str]) -> list[tuple[str, str]]:
    """All pairs of earlier tokens that make up a later one, in the order of the later."""
    rank = {token: i for i, token in enumerate(tokens)}
    merges = []

    for token, i in rank.items():
        pairs = [(token[:cut], token[cut:]) for cut in range(1, len(token))]
        ranks = [(rank.get(a, i), rank.get(b, i)) for a, b in pairs]
        merges += [pair for both, pair in sorted(zip(ranks, pairs, strict=True)) if max(both) < i]

    return merges


def from_hf(
    text: str, specials: Ids, vocab_size: int, files: dict[str, str] | None = None
) -> Tokenizer:
    """A BytePairTokenizer, which is several times as fast, if its ids are the same, as those of
    GPT-2's; else the library's own tokenizer, wrapped."""
    hub = HubTokenizer(text, specials, vocab_size)
    spec = json.loads(hub.backend.to_str())  # as the library has read it, with all defaults
    template = template_of(spec["post_processor"])
    native = native_tokenizer(spec, hub)
    if native is None:
        return imported(hub, template, files or {})
    return imported(native, template, {"tokenizer.json": text} | (files or {}))


def template_of(processor: Any) -> Template:
    """The ids that a post-processor, as JSON, puts before and after a text."""
    kind = processor and processor["type"]
    if kind == "Sequence":  # the library allows one template in it
        templates = map(template_of, processor["processors"])
        return next(filter(any, templates), NO_TEMPLATE)

    if kind in ("BertProcessing", "RobertaProcessing"):
        return [[processor["cls"][1]], [processor["sep"][1]]]

    if kind != "TemplateProcessing":
        return NO_TEMPLATE

    sides: Template = [[]]
    for piece in processor["single"]:
        if "Sequence" in piece:
            sides.append([])
        else:
            name = piece["SpecialToken"]["id"]
            sides[-1] += processor["special_tokens"][name]["ids"]

    if len(sides) != 2:
        reason = "does not put special tokens around one text"
        raise ValueError(f"the tokenizer's post-processor {reason}")

    return sides


def native_tokenizer(spec: Any, hub: HubTokenizer) -> BytePairTokenizer | None:
    """That of a byte-level BPE that is merged in the order of its ids, with special tokens last."""
    model = spec["model"]
    added = {token["content"] for token in spec["added_tokens"]}
    pattern = split_regex(spec["pre_tokenizer"])
    if model["type"] != "BPE" or pattern is None or spec["normalizer"]:
        return None

    unsupported = ("unk_token", "continuing_subword_prefix", "end_of_word_suffix", "byte_fallback")
    if any(map(model.get, unsupported)):
        return None

    if not all(token["special"] for token in spec["added_tokens"]):
        return None

    ids = {token: i for token, i in model["vocab"].items() if token not in added}
    tokens = sorted(ids, key=ids.__getitem__)
    if [ids[token] for token in tokens] != list(range(len(tokens))):
        return None

    byte_of = {char: byte for byte, char in enumerate(bytes_to_unicode())}
    if set("".join(tokens)) != set(byte_of) or not set(byte_of) <= set(tokens):
        return None

    if min(hub.specials.values()) < len(tokens):
        return None

    if not merges_follow_ranks(ids, model["merges"], model["ignore_merges"]):
        return None

    ranks = to_base64(bytes(byte_of[char] for char in token) for token in tokens)
    native = BytePairTokenizer(pattern, ranks, hub.specials, hub.vocab_size)
    everything = SAMPLE + hub.decode(range(len(tokens)))
    try:
        is_same = np.array_equal(native.encode(everything), hub.encode(everything))
    except ValueError:  # a pattern that tiktoken cannot use
        is_same = False

    return native if is_same else None


def split_regex(pre_tokenizer: Any) -> str | None:
    """The pattern that splits text before the byte-level step, or None."""
    *splits, last = (pre_tokenizer or {}).get("pretokenizers", [pre_tokenizer])
    if not last or last["type"] != "ByteLevel" or last["add_prefix_space"]:
        return None

    if not splits:
        return PATTERN if last["use_regex"] else None

    plain = {"type": "Split", "behavior": "Isolated", "invert": False}
    if len(splits) > 1 or last["use_regex"] or not plain.items() <= splits[0].items():
        return None

    return splits[0]["pattern"].get("Regex")


def merges_follow_ranks(ids: Ids, merges: list, ignore_merges: bool) -> bool:
    """Does tiktoken, which merges any two tokens that make up a third, lowest id first, give the
    same ids? It does if these merges are in the order of the ids and lead to each token, given its
    bytes alone."""
    from tokenizers.models import BPE

    pairs = [tuple(merge) for merge in merges]
    made = [ids.get("".join(pair), -1) for pair in pairs]
    are_known = all(token in ids for pair in pairs for token in pair)
    if not are_known or -1 in made or made != sorted(made):
        return False

    model = BPE(ids, pairs)
    for token in ids:
        parts = [part.value for part in model.tokenize(token)]
        merge_on = not ignore_merges or any(a + b in ids for a, b in pairwise(parts))
        if len(parts) > 1 and merge_on:
            return False

    return True
