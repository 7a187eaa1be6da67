"""Marks: special tokens in a prompt, such as the mask that an encoder fills."""

from collections.abc import Sequence

from data.tokenizers.tokenizer import SPLIT, Template, Tokenizer

MASK = "[MASK]"
Ids = list[int]


def encode_marked(
    text: str,
    tokenizer: Tokenizer,
    template: Template,
    around: Sequence[str],
    special: bool,
) -> tuple[Ids, Ids, Ids]:
    """Returns (ids before the text, its ids, ids after it). With `special`, the text has all
    special tokens written out. Else each [MASK] becomes a special token: for an encoder the mask,
    for T5 the next sentinel, for an objective with tokens `around` pieces (<prefix> a <suffix> b
    <middle>) the one between them; for other models it is ordinary text."""
    if special:
        if tokenizer.splits_specials:
            raise ValueError(f"--special has no effect: {SPLIT}")
        ids, _ = tokenizer.encode_specials(text)
        return [], ids, []

    before, after = template
    specials = tokenizer.specials
    count = text.count(MASK)

    if around and count:
        first, *marks, last = [specials[name] for name in around]
        before = [*before, first]
        after = [last, *after]
    elif "mask" in specials:
        marks = [specials["mask"]] * count
    else:
        names = [f"sentinel_{n}" for n in range(count)]
        marks = [specials[name] for name in names if name in specials]

    if marks and len(marks) != count:  # without marks, it is text
        raise ValueError(f"the prompt has {count} {MASK}; this run has {len(marks)}")

    if tokenizer.text and (marks or "mask" in specials):
        # an imported tokenizer decides which white space belongs to a mark
        written = tokenizer.special_texts()
        for mark in marks:
            text = text.replace(MASK, written[mark], 1)
        ids, _ = tokenizer.encode_specials(text)
        return before, ids, after

    begin, *pieces = text.split(MASK, len(marks))
    ids = tokenizer.encode(begin).tolist()
    for mark, piece in zip(marks, pieces, strict=True):
        ids += [mark, *tokenizer.encode(piece).tolist()]
    return before, ids, after
