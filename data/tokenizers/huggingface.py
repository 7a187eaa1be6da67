"""Writes a tokenizer in the format of transformers; ids are kept."""

import json
import re

from data.tokenizers.imported import load_hf_tokenizer
from data.tokenizers.plain import CharTokenizer
from data.tokenizers.tokenizer import NO_TEMPLATE, Tokenizer
from data.tokenizers.train import byte_level, bytes_to_unicode

SETTINGS = "tokenizer_config.json"
GENERATION = "generation_config.json"
FORCED = ("forced_bos_token_id", "forced_eos_token_id")
ROLE_NAMES = {"end": "eos_token", "start": "bos_token", "pad": "pad_token", "mask": "mask_token"}
NO_CLASS = {  # such a tokenizer adds nothing to a text
    "tokenizer_class": "PreTrainedTokenizerFast",
    "add_bos_token": False,
    "add_eos_token": False,
}


def drop_template(tokenizer: Tokenizer) -> None:
    """Remove template and forced tokens: training here uses none, so transformers must not add
    them, by add_bos_token or by a class with its own template, such as BertTokenizer."""
    files = tokenizer.files
    if GENERATION in files:
        content = json.loads(files[GENERATION]) | dict.fromkeys(FORCED)
        files[GENERATION] = json.dumps(content, indent=2)

    if any(tokenizer.template):
        own = json.loads(files.get(SETTINGS, "{}"))
        text, files[SETTINGS] = without_class(tokenizer, own)
        tokenizer.text = json.dumps(json.loads(text) | {"post_processor": None})
        tokenizer.template = NO_TEMPLATE


def without_class(tokenizer: Tokenizer, settings: dict) -> tuple[str, str]:
    """tokenizer.json, and a tokenizer_config.json that adds nothing to a text."""
    text = tokenizer_json(tokenizer)
    library = load_hf_tokenizer(text)
    tokens = {name: library.id_to_token(i) for name, i in tokenizer.specials.items()}
    roles = {role: tokens[name] for name, role in ROLE_NAMES.items() if tokens.get(name)}
    return text, json.dumps(roles | settings | NO_CLASS, indent=2)


def tokenizer_json(tokenizer: Tokenizer) -> str:
    """The text of tokenizer.json. Special tokens are written as <|name|>."""
    if tokenizer.text:  # it is imported
        return tokenizer.text
    from tokenizers import AddedToken, decoders, models
    from tokenizers import Tokenizer as Library

    library = Library(models.BPE())
    if isinstance(tokenizer, CharTokenizer):
        tokens = list(tokenizer.characters)
        library.decoder = decoders.Fuse()
    else:
        char_of = bytes_to_unicode()
        known = [tokenizer.decode_bytes([i]) for i in range(tokenizer.n_ordinary)]
        tokens = ["".join(char_of[byte] for byte in token) for token in known]

        # the library reads the possessive {1,3}+ as a repeated repetition
        pattern = re.sub(r"(\{\d+,\d+\})\+", r"\1", getattr(tokenizer, "pattern", ""))
        library.pre_tokenizer = byte_level(pattern)
        library.decoder = decoders.ByteLevel()

    vocab = {token: i for i, token in enumerate(tokens)}
    names = {f"<|{name}|>": i for name, i in tokenizer.specials.items()}
    library.model = models.BPE(vocab | names, merges_of(tokens), ignore_merges=True)
    library.add_special_tokens([AddedToken(name, normalized=False) for name in names])
    return library.to_str()


def merges_of(tokens: list[str]) -> list[tuple[str, str]]:
    """All pairs of earlier tokens that join to a later one, in the order of the later tokens.
    tiktoken keeps no merges: it joins any pair that is a token, the earliest one first."""
    merges = []
    rank: dict[str, int] = {}  # of each earlier token

    for token in tokens:
        pairs = [(token[:cut], token[cut:]) for cut in range(1, len(token))]
        known = [pair for pair in pairs if rank.keys() >= {*pair}]
        merges += sorted(known, key=lambda pair: [rank[part] for part in pair])
        rank[token] = len(rank)
    return merges
