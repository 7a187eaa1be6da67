"""The objectives: next_token.py has the usual one, and the base class."""

from configs.registry import Registry
from data.objectives.masked import Masked, Span
from data.objectives.next_token import NextToken, Objective
from data.objectives.pairs import Chat, Classify, Seq2Seq

OBJECTIVES: Registry[type[Objective]] = Registry(
    next_token=NextToken,
    masked=Masked,
    span=Span,
    pairs=Seq2Seq,
    chat=Chat,
    classify=Classify,
)
