"""Next-token prediction."""

from typing import Any

from numpy import ndarray

from data.batch import Batch, make_batch
from data.objectives import Draw, Objective
from data.tokenizers.tokenizer import Tokenizer


class NextToken(Objective):
    """Each token is predicted from those before it."""

    lookahead = 1
    bits_per_byte = True

    def __init__(self, context_length: int, document_mask: bool = False) -> None:
        self.seq_len = context_length
        self.document_mask = document_mask

    def batch(self, rows: ndarray, draw: Draw, tokenizer: Tokenizer) -> Batch:
        inputs: dict[str, Any] = {"tokens": rows[:, :-1]}
        if self.document_mask:  # an end token begins the document that follows it
            is_first = inputs["tokens"] == tokenizer.specials["end"]
            inputs["documents"] = is_first.cumsum(1)
        return make_batch(rows[:, 1:], **inputs)
