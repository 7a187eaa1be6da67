"""For model/, until it is rebuilt."""

from data.tokenizers.tokenizer import as_tokenizer_error

__all__ = ["as_tokenizer_error"]
