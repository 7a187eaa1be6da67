"""A text as it comes: whole characters, nothing of a stop string, in the end all of it."""

import random

import pytest

from data.tokenizers.tokenizer import ByteTokenizer, assign_ids
from model.generate.stream import TextStream, escape_control

TOKENIZER = ByteTokenizer(assign_ids(["end", "start", "sentinel_0", "sentinel_1"], 256))
TEXT = "naïve ☃ aaab 🙂 abaab\n漢字 ab"


def spoken(ids, stops=()):
    voice, told = TextStream(TOKENIZER, stops), []
    for i in ids:
        told.append(voice.hear(i))
        if voice.stop:
            return voice, told
    return voice, [*told, voice.finish("length")]


def test_never_half_a_character():
    voice, told = spoken(TEXT.encode())
    assert "".join(told) == voice.text == TEXT and "\ufffd" not in "".join(told)
    assert told[3:5] == ["", "v"] or told[2:4] == ["", "ï"]


def test_what_never_becomes_a_character_is_shown_in_the_end():
    voice, told = spoken("☃".encode()[:2])
    assert told == ["", "", "\ufffd"] and voice.text == "\ufffd"


def reference(text, stops):
    places = [text.find(stop) for stop in stops if stop in text]
    return text[: min(places)] if places else text


def test_nothing_of_a_stop_string_is_told():
    """Over many texts of few letters, so that strings begin in vain, overlap and meet."""
    draw = random.Random(0)
    for _ in range(2000):
        text = "".join(draw.choices("ab☃", k=12))
        stops = ["".join(draw.choices("ab☃", k=draw.randint(1, 4))) for _ in range(draw.randint(1, 3))]
        voice, told = spoken(text.encode(), stops)
        expected = reference(first_to_end(text, stops), stops)
        assert "".join(told) == voice.text == expected, (text, stops)
        assert voice.stop == ("stop string" if expected != text else "length")


def first_to_end(text, stops):
    """As much as is heard before some stop string is whole."""
    for n in range(1, len(text) + 1):
        if any(stop in text[:n] for stop in stops):
            return text[:n]
    return text


def test_what_cannot_become_a_stop_string_is_told_at_once():
    _, told = spoken(b"axab", ["ab"])
    assert told == ["", "ax", "", ""]


def test_the_end_is_no_text():
    voice, told = spoken([*b"ab", 256, *b"cd"])
    assert (told, voice.text, voice.stop, voice.ids) == (["a", "b", ""], "ab", "end", [97, 98, 256])


def test_fillings_are_told_apart():
    voice, _ = spoken([258, *b"x", "☃".encode()[0], 259, *b"y", 257])
    assert voice.text == "<sentinel_0>x\ufffd<sentinel_1>y"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\n\tb ☃ é", "a\n\tb ☃ é"),
        ("\x1b[2J", r"\x1b[2J"),
        ("a\rb\x00\x07\x7f\x9b", r"a\rb\x00\x07\x7f\x9b"),
    ],
)
def test_control_characters_are_harmless(text, shown):
    assert escape_control(text) == shown
