"""Special tokens that are written out in a text, such as <|end|> in a chat template."""

import re
from typing import Any

import numpy as np


def parse_specials(tokenizer: Any, text: str) -> tuple[list[int], list[int]]:
    """Returns (ids, the character at which each begins)."""
    special = {written: i for i, written in tokenizer.special_texts().items()}
    ids: list[int] = []
    tokens: list[bytes] = []
    for piece in re.split(r"(<\|\w+\|>)", text):
        if piece in special:
            ids.append(special[piece])
            tokens.append(piece.encode())
            continue
        new = tokenizer.encode(piece).tolist()
        ids += new
        tokens += [tokenizer.decode_bytes([i]) for i in new]
    utf8 = np.frombuffer(b"".join(tokens), np.uint8)
    character_of_byte = np.cumsum((utf8 & 0b11000000) != 0b10000000) - 1
    begins = np.cumsum([0, *map(len, tokens)])[:-1]
    return ids, character_of_byte[begins].tolist()
