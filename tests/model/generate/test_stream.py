"""Streamed text: complete characters, nothing of a stop string, and all of the text in the end."""

import random

from data.tokenizers.plain import ByteTokenizer
from data.tokenizers.tokenizer import assign_ids
from model.generate.text import TextStream

TOKENIZER = ByteTokenizer(assign_ids(["end", "start", "sentinel_0", "sentinel_1"], 256))


def streamed(ids, stops=()):
    """(stream, the pieces it emitted)."""
    stream = TextStream(TOKENIZER, stops)
    pieces = [stream.push(i) for i in ids]
    return stream, [*pieces, stream.finish("length")]


def test_nothing_of_a_stop_string_is_emitted():
    """Over many texts of few letters, in which stop strings begin in vain, overlap and coincide."""
    draw = random.Random(0)
    for _ in range(2000):
        text = "".join(draw.choices("ab☃", k=12))
        lengths = [draw.randint(1, 4) for _ in range(draw.randint(1, 3))]
        stops = ["".join(draw.choices("ab☃", k=length)) for length in lengths]
        expected = text
        for n in range(len(text) + 1):
            places = [text[:n].find(stop) for stop in stops if stop in text[:n]]
            if places:  # some stop string is complete
                expected = text[: min(places)]
                break
        stream, pieces = streamed(text.encode(), stops)
        assert "".join(pieces) == stream.text == expected, (text, stops)
        assert stream.finish_reason == ("stop" if places else "length")


def test_what_cannot_begin_a_stop_string_is_emitted_at_once():
    assert streamed(b"axab", ["ab"])[1] == ["", "ax", "", "", ""]


def test_eos_is_not_text_and_ends_the_stream():
    stream, pieces = streamed([*b"ab", 256, *b"cd"])
    assert pieces == ["a", "b", "", "", "", ""]
    assert (stream.text, stream.finish_reason, stream.ids) == ("ab", "eos", [97, 98, 256])


def test_sentinels_are_shown():
    stream, _ = streamed([258, *b"x", "☃".encode()[0], 259, *b"y", 257])
    assert stream.text == "<sentinel_0>x\ufffd<sentinel_1>y"
