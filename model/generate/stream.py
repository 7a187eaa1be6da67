"""Stream: ids become text as they are generated."""

from collections.abc import Sequence
from typing import Any


class TextStream:
    """The text of one row, which continues the ids `prefix`. What it emits never contains part of
    a character or of a stop string."""

    def __init__(
        self, tokenizer: Any, stops: Sequence[str] = (), prefix: Sequence[int] = ()
    ) -> None:
        self.decode = tokenizer.incremental_decoder(prefix)
        self.tokenizer = tokenizer
        self.stops = stops
        self.text = ""
        self.pending = ""  # perhaps the beginning of a stop string
        self.ids: list[int] = []
        self.logprobs: list[float] = []
        self.finish_reason: str | None = None  # eos, stop or length

    def push(self, i: int | None, logprob: float = 0.0) -> str:
        """The text that is certain with the next id. A finished stream ignores it."""
        if self.finish_reason or i is None:
            return ""
        self.ids.append(i)
        self.logprobs.append(logprob)
        if i in self.tokenizer.end_ids:
            return self.finish("eos")

        # the text that it adds
        name = self.tokenizer.names.get(i, "")
        if name.startswith("sentinel"):  # shown, for it separates the spans that a model fills in
            self.pending += self.decode([], final=True) + f"<{name}>"
        else:
            self.pending += self.decode([i])

        # what is before the first stop string
        places = [self.pending.find(stop) for stop in self.stops if stop in self.pending]
        if places:
            self.finish_reason = "stop"
            return self.emit(min(places))

        # wait for as much as may begin a stop string
        begun = 0
        while not any(stop.startswith(self.pending[begun:]) for stop in self.stops) and begun < len(
            self.pending
        ):
            begun += 1
        return self.emit(begun)

    def finish(self, reason: str) -> str:
        """The rest of the text, unless the stream has finished already."""
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
