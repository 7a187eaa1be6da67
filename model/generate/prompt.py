"""Prompt: text becomes the ids that a model has learned to see."""

from collections.abc import Sequence

from data.tokenizers.tokenizer import Template, Tokenizer
from model.generate.marks import MASK, encode_marked


def encode_prompt(
    text: str,
    tokenizer: Tokenizer,
    context_length: int,
    slide: bool,
    template: Template,
    around: Sequence[str] = (),
    special: bool = False,
) -> list[int]:
    """The ids of a text in its template, none for a text without any. What [MASK], `around` and
    `special` mean is told by encode_marked."""
    # an imported encoder finds its special tokens in any text
    if special or MASK in text or (tokenizer.text and "mask" in tokenizer.specials):
        ids, template = encode_marked(text, tokenizer, template, around, special)
    else:
        ids = tokenizer.encode(text).tolist()
    if not ids:
        return []

    before, after = template
    n = len(before + ids + after)
    excess = max(0, n - context_length)
    if excess and not slide:
        limit = f"the context length is {context_length}"
        raise ValueError(f"the prompt has {n} tokens; {limit} (see --slide)")
    return before + ids[excess:] + after
