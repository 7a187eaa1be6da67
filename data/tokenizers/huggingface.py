"""Exchange: tokenizers to and from the JSON of the `tokenizers` library, with the same ids on both sides."""

import json
import re

from data.tokenizers.tokenizer import NO_TEMPLATE, BytePairTokenizer, from_hub_state, load_hf_tokenizer
from data.tokenizers.train import PATTERN, bytes_to_unicode

SAMPLE = (
    "It's  a naïve Straße, 東京 — don't 1234567890 3.14e-10!\n\n\tdef f(x):\r\n        return x ** 2  # été\n"
    '\'Tis "so" e\u0301 \u00a0 \u2028 \U0001f642\U0001f468\u200d\U0001f469 Привет мир 你好 शब्द  end \n \n  '
)
SPLIT = {"type": "Split", "behavior": "Isolated", "invert": False}
BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}


def to_hf(tokenizer):
    """(JSON text, {name of a special token: its text there})"""
    if tokenizer.kind == "hub":
        names = {name: tokenizer.library.id_to_token(i) for name, i in tokenizer.specials.items()}
        return tokenizer.text, {name: text for name, text in names.items() if text is not None}
    first = {i: f"<|{name}|>" for name, i in reversed(tokenizer.specials.items())}
    names = {name: first[i] for name, i in tokenizer.specials.items()}  # where two share an id, they share it
    if tokenizer.kind == "char":
        tokens, merges, pattern = list(tokenizer.characters), [], None
    else:
        ranks = tokenizer.ranks if tokenizer.kind == "bpe" else [bytes([b]) for b in range(256)]
        letter = bytes_to_unicode()
        tokens = ["".join(letter[b] for b in token) for token in ranks]
        merges, pattern = merges_of(tokens), getattr(tokenizer, "pattern", None)
    whole = bpe_json(tokens, merges, pattern, {names[n]: i for n, i in tokenizer.specials.items()})
    whole["post_processor"] = template_processing(tokenizer.template, first)
    if tokenizer.kind == "char":
        whole |= {"pre_tokenizer": None, "decoder": {"type": "Fuse"}}
    text = json.dumps(whole, ensure_ascii=False)
    known = [c for c in SAMPLE if tokenizer.kind != "char" or c in tokenizer.characters]
    if not same_ids(tokenizer, load_hf_tokenizer(text), "".join(known)):
        raise ValueError("this tokenizer's pattern means something else to the tokenizers library")
    return text, names


def bpe_json(tokens, merges, pattern, specials):
    vocab = {token: i for i, token in enumerate(tokens)} | specials
    # the library's regular expressions take {1,3}+ for a repetition of repetitions
    regex = pattern and re.sub(r"(\{\d+,\d+\})\+", r"\1", pattern)
    splits = [{**SPLIT, "pattern": {"Regex": regex}}] if regex else []
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {"id": i, "content": name, "special": True}
            | dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
            for name, i in sorted(specials.items(), key=lambda item: item[1])
        ],
        "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [*splits, BYTES]},
        "post_processor": None,
        "decoder": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": True,  # a word that is a token is that token
            "vocab": vocab,
            "merges": merges,
        },
    }


def merges_of(tokens):
    """Every two earlier tokens that make up a later one, in the order of the later."""
    rank = {token: i for i, token in enumerate(tokens)}
    found = []
    for token, i in rank.items():
        pairs = [(token[:cut], token[cut:]) for cut in range(1, len(token))]
        earlier = [(a, b) for a, b in pairs if rank.get(a, i) < i and rank.get(b, i) < i]
        found += sorted(earlier, key=lambda pair: (rank[pair[0]], rank[pair[1]]))
    return [list(pair) for pair in found]


def same_ids(tokenizer, other, text):
    return tokenizer.encode(text).tolist() == other.encode(text, add_special_tokens=False).ids


def template_of(processor):
    """The ids that a post-processor in JSON sets before a text and after it; one that only counts characters
    sets none."""
    kind = processor and processor["type"]
    if kind == "Sequence":
        frames = map(template_of, processor["processors"])
        return next(filter(any, frames), NO_TEMPLATE)  # the library cannot take two
    if kind in ("BertProcessing", "RobertaProcessing"):
        return [[processor["cls"][1]], [processor["sep"][1]]]
    return single_template(processor) if kind == "TemplateProcessing" else NO_TEMPLATE


def single_template(processor):
    pieces, known = processor["single"], processor["special_tokens"]
    texts = [place for place, piece in enumerate(pieces) if "Sequence" in piece]
    names = [piece["SpecialToken"]["id"] for piece in pieces if "SpecialToken" in piece]
    if len(texts) != 1 or not known.keys() >= set(names):
        raise ValueError("the tokenizer's post-processor is none that sets known tokens around a text")
    ids = [known[name]["ids"] for name in names]
    return [[i for piece in side for i in piece] for side in (ids[: texts[0]], ids[texts[0] :])]


def template_processing(template, names):
    """Such a post-processor; `names` has those of ids."""
    if not any(template):
        return None
    spelled = {i: names.get(i, f"<|{i}|>") for side in template for i in side}
    before, after = ([{"SpecialToken": {"id": spelled[i], "type_id": 0}} for i in side] for side in template)
    first, second = ({"Sequence": {"id": letter, "type_id": n}} for n, letter in enumerate("AB"))
    return {
        "type": "TemplateProcessing",
        "single": [*before, first, *after],
        "pair": [*before, first, *after, second, *after],
        "special_tokens": {name: {"id": name, "ids": [i], "tokens": [name]} for i, name in spelled.items()},
    }


def from_hf(text, specials, vocab_size):
    """Ours where it can be said in our words, with the same ids; else the library's own, wrapped."""
    template = template_of(json.loads(text).get("post_processor"))
    told = {"template": template} if any(template) else {}
    wrapped = from_hub_state({"text": text, "specials": specials, "vocab_size": vocab_size, **told})
    ours = as_byte_bpe(wrapped)
    return ours or wrapped


def as_byte_bpe(wrapped):
    """GPT-2's kind: bytes, merged in the order of their ids, special tokens behind; or None."""
    whole = json.loads(wrapped.text)
    model, pattern = whole["model"], split_regex(whole.get("pre_tokenizer"))
    odd = ("dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix", "byte_fallback")
    if model.get("type") != "BPE" or pattern is None or whole.get("normalizer") or any(map(model.get, odd)):
        return None
    added = {token["content"] for token in whole.get("added_tokens", [])}
    if not all(token["special"] for token in whole.get("added_tokens", [])):
        return None
    ids = {token: i for token, i in model["vocab"].items() if token not in added}
    byte_of = {letter: byte for byte, letter in enumerate(bytes_to_unicode())}
    tokens = sorted(ids, key=ids.get)
    if [ids[t] for t in tokens] != list(range(len(tokens))) or not set(byte_of) <= ids.keys():
        return None
    if not all(letter in byte_of for token in tokens for letter in token):
        return None
    ranks = [bytes(byte_of[letter] for letter in token) for token in tokens]
    if min(wrapped.specials.values()) < len(ranks):
        return None
    try:
        ours = BytePairTokenizer(pattern, ranks, wrapped.specials, wrapped.vocab_size, wrapped.template)
    except ValueError:  # a pattern that tiktoken cannot compile
        return None
    everything = SAMPLE + wrapped.decode(range(len(ranks)))
    return ours if same_ids(ours, wrapped.library, everything) else None


def split_regex(pre_tokenizer):
    """The pattern by which text is cut into words of bytes, or None."""
    steps = (pre_tokenizer or {}).get("pretokenizers", [pre_tokenizer])
    if not steps[-1] or steps[-1].get("type") != "ByteLevel" or steps[-1].get("add_prefix_space"):
        return None
    if len(steps) == 1:
        return PATTERN if steps[0].get("use_regex", True) else None
    split = steps[0]
    usual = all(split.get(key) == value for key, value in SPLIT.items()) and not steps[-1].get("use_regex")
    return split["pattern"].get("Regex") if usual and len(steps) == 2 else None
