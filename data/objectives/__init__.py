"""Objectives: what a model is trained to predict. Each has a file of its own.

The names given to draw() are seeds: with other names, the same seed gives other batches.
"""

from collections.abc import Callable
from typing import Any, Literal

import torch
from numpy import ndarray
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from configs.registry import Registry

Draw = Callable[[str, int], ndarray]  # (purpose, width) -> (row, width) random uint64
TooLong = Literal["drop", "truncate", "error"]


class Objective:
    """Base of all kinds. Those of text have batch(rows, draw, tokenizer), whose rows are `seq_len`
    tokens and `lookahead` more; of pairs and conversations see Seq2Seq and Chat. A batch() with a
    parameter `step` gets that, or None in an evaluation."""

    input_kind = "text"  # or pairs, or chat
    items = "sequences"  # that it is trained on
    architectures: tuple[str, ...] = ("decoder",)
    specials: tuple[str, ...] = ("end",)
    lookahead = 0
    bits_per_byte = False  # the loss is that of a text, each token once: it has a val_bpb
    accuracy: str | None = None  # of ACCURACIES in training/evaluation.py
    # special tokens around the pieces of a prompt that [MASK] splits, for a kind of your own
    prompt: tuple[str, ...] = ()
    # generate(model, prompts, *, tokenizer, ...) of a kind of your own, in place of decode()
    generate: Callable[..., Any] | None = None


def pad_rows(rows: list[ndarray], value: int) -> Tensor:
    tensors = [torch.from_numpy(row) for row in rows]
    return pad_sequence(tensors, batch_first=True, padding_value=value)


OBJECTIVES: Registry[type[Objective]] = Registry(
    next_token="data.objectives.next_token:NextToken",
    masked="data.objectives.masked:Masked",
    span="data.objectives.span:Span",
    pairs="data.objectives.pairs:Seq2Seq",
    chat="data.objectives.chat:Chat",
)
