"""Prompt: text becomes ids, in the form that a model was trained on."""

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
    """The ids of a text in its template; [] if the text has no ids. Masks, and the other options,
    are explained in marks.py."""
    before, after = template
    is_imported = tokenizer.text is not None

    if special or is_imported or MASK in text:
        before, ids, after = encode_marked(text, tokenizer, template, around, special)
    else:
        ids = tokenizer.encode(text).tolist()

    if not ids:
        return []

    n = len(before + ids + after)
    excess = max(0, n - context_length)
    if excess and not slide:
        raise ValueError(
            f"the prompt has {n} tokens; the context length is {context_length} (see --slide)"
        )
    return before + ids[excess:] + after
