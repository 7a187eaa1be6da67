"""Speaking: the ids that a model writes become text, as they come."""

import unicodedata


class TextStream:
    """One text on its way, behind the ids before it: never half a character, and nothing of a stop string, at
    which it ends."""

    def __init__(self, tokenizer, stops=(), before=()):
        self.stream, self.end, self.stops = (
            tokenizer.incremental_decoder(before),
            tokenizer.specials["end"],
            stops,
        )
        # what an answer fills in is told apart by these
        self.names = {i: f"<{name}>" for i, name in tokenizer.names.items() if name.startswith("sentinel")}
        self.text, self.held, self.ids, self.logprobs = "", "", [], []
        self.stop = None  # why it ended

    def hear(self, i, logprob=None):
        """The next id. What is certain by now, and has not been told."""
        self.ids.append(i)
        self.logprobs.append(logprob)
        if i == self.end:
            return self.finish("end")
        name = self.names.get(i)
        self.held += self.stream([i]) if name is None else self.stream([], final=True) + name
        places = [place for stop in self.stops if (place := self.held.find(stop)) >= 0]
        if places:
            self.stop = "stop string"
            return self.tell(min(places))
        return self.tell(len(self.held) - self.doubtful())

    def finish(self, why):
        self.held += self.stream([], final=True)
        self.stop = why
        return self.tell(len(self.held))

    def tell(self, length):
        told, self.held = self.held[:length], self.held[length:]
        self.text += told
        return told

    def doubtful(self):
        """How many of the last characters may turn out to begin a stop string."""
        begun = (n for stop in self.stops for n in range(1, len(stop)) if self.held.endswith(stop[:n]))
        return max(begun, default=0)


def escape_control(text):
    """The text for a terminal, on which control characters would act: they are spelled out."""
    return "".join(spelled(c) if unicodedata.category(c) == "Cc" and c not in "\n\t" else c for c in text)


def spelled(character):
    return character.encode("unicode_escape").decode()
