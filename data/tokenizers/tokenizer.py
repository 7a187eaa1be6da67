"""The kinds of tokenizers: those that are made here, and imported ones."""

from configs.registry import Registry, build
from data.tokenizers.base import (
    NO_TEMPLATE,
    BytePairTokenizer,
    ByteTokenizer,
    CharTokenizer,
    Ids,
    State,
    Template,
    Tokenizer,
    assign_ids,
    to_base64,
)
from data.tokenizers.imported import SPLIT, HubTokenizer, load_hf_tokenizer

__all__ = [
    "NO_TEMPLATE",
    "SPLIT",
    "Ids",
    "Template",
    "assign_ids",
    "load_hf_tokenizer",
    "to_base64",
]
KINDS = Registry(
    **{c.kind: c for c in (ByteTokenizer, CharTokenizer, BytePairTokenizer, HubTokenizer)}
)


def tokenizer_from_state(state: State) -> Tokenizer:
    return build("tokenizer", KINDS, state, {})
