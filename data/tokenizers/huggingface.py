"""Tokenizers to and from tokenizer.json, the format of the `tokenizers` library, with the same ids."""

import json
import re
from itertools import pairwise

from data.tokenizers.limits import MAX_TEMPLATE, SAMPLE, require
from data.tokenizers.tokenizer import (
    NO_TEMPLATE,
    BytePairTokenizer,
    HubTokenizer,
    load_hf_tokenizer,
)
from data.tokenizers.train import PATTERN, byte_level, bytes_to_unicode


def to_hf(tokenizer):
    """(tokenizer.json, {name of a special token: how it is written there})"""
    text = tokenizer.text or bpe_json(tokenizer)
    hf_tokenizer = load_hf_tokenizer(text)
    sample = "".join(c for c in SAMPLE if tokenizer.kind != "char" or c in tokenizer.characters)
    if tokenizer.kind != "hub" and not same_ids(tokenizer, hf_tokenizer, sample):
        raise ValueError("the tokenizers library interprets this tokenizer's pattern differently")
    names = {name: hf_tokenizer.id_to_token(i) for name, i in tokenizer.specials.items()}
    return text, {name: token for name, token in names.items() if token is not None}


def bpe_json(tokenizer):
    """The tokenizer.json of a tokenizer that was made here."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, processors

    name_of = {
        i: f"<|{name}|>" for name, i in reversed(tokenizer.specials.items())
    }  # one name for each id
    if tokenizer.kind == "char":
        tokens, merges = list(tokenizer.characters), []
    else:
        ranks = tokenizer.ranks if tokenizer.kind == "bpe" else [bytes([b]) for b in range(256)]
        char_of = bytes_to_unicode()
        tokens = ["".join(char_of[b] for b in token) for token in ranks]
        merges = merges_of(tokens)
    vocab = {token: i for i, token in enumerate(tokens)} | {name: i for i, name in name_of.items()}
    hf_tokenizer = Tokenizer(models.BPE(vocab, merges, ignore_merges=True))
    hf_tokenizer.add_special_tokens(
        [AddedToken(name_of[i], normalized=False) for i in sorted(name_of)]
    )
    if tokenizer.kind == "char":
        hf_tokenizer.decoder = decoders.Fuse()
    else:
        # the library reads the possessive {1,3}+ as a repeated repetition
        pattern = re.sub(r"(\{\d+,\d+\})\+", r"\1", getattr(tokenizer, "pattern", ""))
        hf_tokenizer.pre_tokenizer, hf_tokenizer.decoder = byte_level(pattern), decoders.ByteLevel()
    if any(tokenizer.template):
        name_of |= {i: f"<|{i}|>" for side in tokenizer.template for i in side if i not in name_of}
        before, after = ([name_of[i] for i in side] for side in tokenizer.template)
        single, special_tokens = [*before, "$A", *after], [(name, i) for i, name in name_of.items()]
        hf_tokenizer.post_processor = processors.TemplateProcessing(
            single=single, pair=[*single, "$B:1", *after], special_tokens=special_tokens
        )
    return hf_tokenizer.to_str()


def merges_of(tokens):
    """All pairs of earlier tokens that make up a later one, in the order of the later."""
    rank, merges = {token: i for i, token in enumerate(tokens)}, []
    for token, i in rank.items():
        pairs = [(token[:cut], token[cut:]) for cut in range(1, len(token))]
        earlier = [(a, b) for a, b in pairs if rank.get(a, i) < i and rank.get(b, i) < i]
        merges += sorted(earlier, key=lambda pair: (rank[pair[0]], rank[pair[1]]))
    return merges


def same_ids(tokenizer, hf_tokenizer, text):
    return (
        tokenizer.encode(text).tolist() == hf_tokenizer.encode(text, add_special_tokens=False).ids
    )


def template_of(processor):
    """The ids that a post-processor, as JSON, puts before and after a text."""
    kind = processor and processor["type"]
    if kind == "Sequence":  # the library allows one template in it
        return next(filter(any, map(template_of, processor["processors"])), NO_TEMPLATE)
    if kind in ("BertProcessing", "RobertaProcessing"):
        return [[processor["cls"][1]], [processor["sep"][1]]]
    if kind != "TemplateProcessing":
        return NO_TEMPLATE
    ids, texts = [], []
    for piece in processor["single"]:
        name = piece.get("SpecialToken", {}).get("id")
        if "Sequence" in piece:
            texts.append(len(ids))
        elif name in processor["special_tokens"]:
            ids += processor["special_tokens"][name]["ids"]
        else:
            raise ValueError(f"the tokenizer's post-processor names an unknown token {name!r}")
        require(len(ids) <= MAX_TEMPLATE, f"the template has more than {MAX_TEMPLATE} ids")
    if len(texts) != 1:
        raise ValueError(
            "the tokenizer's post-processor does not put special tokens around one text"
        )
    return [ids[: texts[0]], ids[texts[0] :]]


def merges_follow_ranks(ids, merges, ignore_merges):
    """Does tiktoken, which merges any two tokens that make up a third, lowest id first, give the same ids? It
    does if these merges are in the order of the ids and lead to each token, given its bytes alone."""
    from tokenizers.models import BPE

    pairs = [tuple(merge.split(" ") if isinstance(merge, str) else merge) for merge in merges]
    made = [ids.get(a + b, -1) for a, b in pairs]
    if -1 in made or made != sorted(made) or not all(a in ids and b in ids for a, b in pairs):
        return False
    model = BPE(ids, pairs)
    for token in ids:
        parts = [part.value for part in model.tokenize(token)]
        if len(parts) > 1 and (not ignore_merges or any(a + b in ids for a, b in pairwise(parts))):
            return False
    return True


def from_hf(text, specials, vocab_size, files=None):
    """A BytePairTokenizer for a byte-level BPE such as GPT-2's, merged in the order of its ids, with special
    tokens last, if both give the same ids; else the library's own tokenizer, wrapped."""
    spec = json.loads(text)
    wrapped = HubTokenizer(
        text, specials, vocab_size, template_of(spec.get("post_processor")), files
    )
    model, pattern = spec["model"], split_regex(spec.get("pre_tokenizer"))
    is_bpe = model.get("type") == "BPE" and pattern is not None and not spec.get("normalizer")
    unsupported = ("unk_token", "continuing_subword_prefix", "end_of_word_suffix", "byte_fallback")
    added = spec.get("added_tokens", [])
    if (
        not is_bpe
        or any(map(model.get, unsupported))
        or not all(token["special"] for token in added)
    ):
        return wrapped
    ids = {
        token: i
        for token, i in model["vocab"].items()
        if token not in {t["content"] for t in added}
    }
    byte_of = {char: byte for byte, char in enumerate(bytes_to_unicode())}
    tokens = sorted(ids, key=ids.get)
    in_order = [ids[t] for t in tokens] == [*range(len(tokens))] and min(specials.values()) >= len(
        tokens
    )
    if not in_order or not set("".join(tokens)) == set(byte_of) <= ids.keys():
        return wrapped
    if not merges_follow_ranks(ids, model["merges"], model.get("ignore_merges")):
        return wrapped
    ranks = [bytes(byte_of[char] for char in token) for token in tokens]
    files = {"tokenizer.json": text} | (files or {})
    try:
        native = BytePairTokenizer(pattern, ranks, specials, vocab_size, wrapped.template, files)
    except ValueError:  # a pattern that tiktoken cannot compile
        return wrapped
    everything = SAMPLE + wrapped.decode(range(len(ranks)))
    return native if same_ids(native, wrapped.backend, everything) else wrapped


def split_regex(pre_tokenizer):
    """The pattern that splits text before the byte-level step, or None."""
    *splits, last = (pre_tokenizer or {}).get("pretokenizers", [pre_tokenizer])
    if not last or last.get("type") != "ByteLevel" or last.get("add_prefix_space"):
        return None
    if not splits:
        return PATTERN if last.get("use_regex", True) else None
    plain = {"type": "Split", "behavior": "Isolated", "invert": False}
    if len(splits) > 1 or last.get("use_regex") or not plain.items() <= splits[0].items():
        return None
    return splits[0]["pattern"].get("Regex")
