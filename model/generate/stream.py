"""Stream: ids become text as they are generated."""


class TextStream:
    """The text of one row, which continues the ids `prefix`. What it emits never contains part of a character
    or of a stop string."""

    def __init__(self, tokenizer, stops=(), prefix=()):
        self.decode, self.stops = tokenizer.incremental_decoder(prefix), stops
        self.end_ids = tokenizer.end_ids
        # sentinels are shown, since they separate the spans that a model fills in
        self.names = {
            i: f"<{name}>" for i, name in tokenizer.names.items() if name.startswith("sentinel")
        }
        self.text, self.buffer, self.ids, self.logprobs = "", "", [], []
        self.finish_reason = None  # eos, stop or length

    def push(self, i, logprob=None):
        """The text that is certain with the next id. A finished stream ignores it."""
        if self.finish_reason:
            return ""
        self.ids.append(i)
        self.logprobs.append(logprob)
        if i in self.end_ids:
            return self.finish("eos")
        name = self.names.get(i)
        self.buffer += self.decode([i]) if name is None else self.decode([], final=True) + name
        if places := [place for stop in self.stops if (place := self.buffer.find(stop)) >= 0]:
            self.finish_reason = "stop"
            return self.emit(min(places))
        prefixes = (
            n for stop in self.stops for n in range(1, len(stop)) if self.buffer.endswith(stop[:n])
        )
        return self.emit(len(self.buffer) - max(prefixes, default=0))

    def finish(self, reason):
        """The rest of the text, unless the stream has finished already."""
        if self.finish_reason:
            return ""
        self.buffer += self.decode([], final=True)
        self.finish_reason = reason
        return self.emit(len(self.buffer))

    def emit(self, length):
        text, self.buffer = self.buffer[:length], self.buffer[length:]
        self.text += text
        return text
