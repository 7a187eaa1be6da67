"""Python tokens, as .ci/budgets and .ci/path count them."""

import tokenize
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
COUNTED = {"NAME", "OP", "NUMBER", "STRING", "COMMENT", "NL"}


def tokens_by_line(path: Path) -> dict[int, int]:
    """An f-string is one token up to Python 3.11, and several from 3.12."""
    counts: dict[int, int] = {}
    with path.open("rb") as file:
        for token in tokenize.tokenize(file.readline):
            if tokenize.tok_name[token.type] in COUNTED:
                line = token.start[0]
                counts[line] = counts.get(line, 0) + 1
    return counts
