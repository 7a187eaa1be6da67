"""Text: a prompt becomes ids, in the form that a model was trained on; ids become text as they are
generated."""

from collections.abc import Sequence
from typing import Any

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


class TextStream:
    """The text of one row, which continues the ids `prefix`. It never emits part of a character or
    of a stop string."""

    def __init__(self, tokenizer: Any, stops: Sequence[str] = (), prefix: Sequence[int] = ()):
        self.decode = tokenizer.incremental_decoder(prefix)
        self.end_ids = tokenizer.end_ids
        self.names = tokenizer.names
        self.stops = stops
        self.text = ""
        self.pending = ""  # may be the beginning of a stop string
        self.ids: list[int] = []
        self.logprobs: list[float] = []
        self.finish_reason: str | None = None  # eos, stop or length

    def push(self, i: int | None, logprob: float = 0.0) -> str:
        """Add the next id and return the text that is now final. A finished stream ignores it."""
        if self.finish_reason or i is None:
            return ""

        self.ids.append(i)
        self.logprobs.append(logprob)

        if i in self.end_ids:
            return self.finish("eos")

        # the text that it adds
        name = self.names.get(i, "")
        if name.startswith("sentinel"):  # shown: it separates the spans that a model fills in
            self.pending += self.decode([], final=True) + f"<{name}>"
        else:
            self.pending += self.decode([i])

        # the text before the first stop string
        places = [self.pending.find(stop) for stop in self.stops if stop in self.pending]
        if places:
            self.finish_reason = "stop"
            return self.emit(min(places))

        # hold back what may be the beginning of a stop string
        for start in range(len(self.pending)):
            rest = self.pending[start:]
            if any(stop.startswith(rest) for stop in self.stops):
                return self.emit(start)
        return self.emit(len(self.pending))

    def finish(self, reason: str) -> str:
        """Finish, and return the rest of the text, unless the stream has already finished."""
        if self.finish_reason:
            return ""
        self.finish_reason = reason

        self.pending += self.decode([], final=True)
        return self.emit(len(self.pending))

    def emit(self, length: int) -> str:
        text = self.pending[:length]
        self.pending = self.pending[length:]
        self.text += text
        return text
