"""Prompt: text becomes the ids that a model has learned to see."""

from collections.abc import Sequence

from data.tokenizers.tokenizer import SPLIT, Template, Tokenizer

MASK = "[MASK]"


def encode_prompt(
    text: str,
    tokenizer: Tokenizer,
    context_length: int,
    slide: bool,
    template: Template,
    around: Sequence[str] = (),
    special: bool = False,
) -> list[int]:
    """The ids of a text in its template, none for a text without any. special: the text has all
    special tokens written out. around: the names of an objective's special tokens around the pieces
    that [MASK] splits."""
    before, after = template
    specials = tokenizer.specials
    marks: list[int] = []
    if special:
        if tokenizer.splits_specials:
            raise ValueError(f"--special has no effect: {SPLIT}")
        before, after = [], []
    elif count := text.count(MASK):
        marks = find_marks(count, specials, around)
        if around:
            before = [*before, specials[around[0]]]
            after = [specials[around[-1]], *after]

    # an imported encoder finds its special tokens in any text, and an imported tokenizer decides
    # which white space belongs to a mark
    if special or (tokenizer.text and (marks or "mask" in specials)):
        written = tokenizer.special_texts()
        for mark in marks:
            text = text.replace(MASK, written[mark], 1)
        ids, _ = tokenizer.encode_specials(text)
    else:
        begin, *pieces = text.split(MASK, len(marks))
        ids = tokenizer.encode(begin).tolist()
        for mark, piece in zip(marks, pieces, strict=True):
            ids += [mark, *tokenizer.encode(piece).tolist()]
    if not ids:
        return []

    n = len(before + ids + after)
    excess = max(0, n - context_length)
    if excess and not slide:
        limit = f"the context length is {context_length}"
        raise ValueError(f"the prompt has {n} tokens; {limit} (see --slide)")
    return before + ids[excess:] + after


def find_marks(count: int, specials: dict[str, int], around: Sequence[str]) -> list[int]:
    """What each [MASK] becomes: the tokens that an objective has between pieces, the mask of an
    encoder, or the sentinels of T5 in turn. To other models it is ordinary text."""
    if around:
        marks = [specials[name] for name in around[1:-1]]
    elif "mask" in specials:
        marks = [specials["mask"]] * count
    else:
        marks = [i for name, i in specials.items() if name.startswith("sentinel")]

    if count > len(marks) > 0 or (around and count != len(marks)):
        raise ValueError(f"the prompt has {count} {MASK}; this run knows {len(marks)}")
    return marks[:count]
