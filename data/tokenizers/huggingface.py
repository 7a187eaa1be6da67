"""Writes a tokenizer as tokenizer.json, the format of the `tokenizers` library; ids are kept."""

import re

from data.tokenizers.plain import CharTokenizer
from data.tokenizers.tokenizer import Tokenizer
from data.tokenizers.train import byte_level, bytes_to_unicode


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
    rank = {token: i for i, token in enumerate(tokens)}
    merges = []
    for token, i in rank.items():
        found = []
        for cut in range(1, len(token)):
            pair = token[:cut], token[cut:]
            ranks = [rank.get(part, i) for part in pair]
            if max(ranks) < i:
                found.append((ranks, pair))
        merges += [pair for _, pair in sorted(found)]
    return merges
