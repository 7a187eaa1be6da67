"""Objectives: what a model is trained to predict, and how batches are made. The usual one is the
next token."""

from collections.abc import Callable

from numpy import ndarray

from data.batch import Batch, make_batch
from data.tokenizers.tokenizer import Tokenizer

Draw = Callable[[str, int], ndarray]  # (purpose, width) -> (row, width) random uint64


class Objective:
    """Base of all kinds. For text they have batch(rows, draw, tokenizer), with rows of `seq_len`
    tokens and `lookahead` more; for pairs and conversations see Seq2Seq and Chat. A batch() with a
    parameter `step` gets the step, or None in an evaluation."""

    input_kind = "text"  # or pairs, chat, labels
    items = "sequences"  # the name of its examples

    architectures: tuple[str, ...] = ("decoder",)
    specials: tuple[str, ...] = ("end",)
    lookahead = 0

    bits_per_byte = False  # the loss covers each token of a text once, so there is a val_bpb
    accuracy: str | None = None  # a key of ACCURACIES in training/predictions.py
    classes: list[str] | None = None  # of labels
    sort_group = 128  # batches of pairs that are sorted by length together, at most

    # for a kind of your own: special tokens around the pieces of a prompt that [MASK] splits
    prompt: tuple[str, ...] = ()


class NextToken(Objective):
    """Predict each token from those before it."""

    lookahead = 1
    bits_per_byte = True

    def __init__(self, context_length: int, document_mask: bool = False):
        """document_mask: train on each document as if it were alone."""
        self.seq_len = context_length
        self.document_mask = document_mask

    def batch(self, rows: ndarray, draw: Draw, tokenizer: Tokenizer) -> Batch:
        """Make a batch. The target of a token is the next one."""
        inputs: dict = {"tokens": rows[:, :-1]}
        if self.document_mask:  # an end token begins the document that follows it
            is_first = inputs["tokens"] == tokenizer.specials["end"]
            inputs["documents"] = is_first.cumsum(1)

        return make_batch(rows[:, 1:], **inputs)
