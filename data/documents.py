"""Documents: texts of any length, read a piece at a time, so that none need fit in memory."""

import codecs
import re
from collections.abc import Callable, Iterator
from typing import NamedTuple

from data.errors import DataError, disk_errors

PIECE = 1 << 19  # characters, or bytes of a file, at hand at once
# Between a letter or digit and the white space after it the words of every encoding here end: text may be cut
# there without changing one token.
SEAM = re.compile(r"[^\W_](?=\s)")
WAY_OUT = "; convert it, or choose the files of a folder by a pattern such as 'folder/**/*.txt'"


class Document(NamedTuple):
    """A name for error messages, and the text in pieces, anew at each call."""

    name: str
    pieces: Callable[[], Iterator[str]]


def whole(name, text):
    return Document(name, lambda: iter([text]))


def file_document(path):
    return Document(str(path), lambda: read_pieces(path))


def read_pieces(path):
    """The text of a UTF-8 file, as it is: only a byte order mark is left out."""
    decoder, offset = codecs.getincrementaldecoder("utf-8")(), 0
    with disk_errors("cannot read"), open(path, "rb") as file:
        while True:
            data = file.read(PIECE)
            if b"\0" in data:
                nul = offset + data.index(b"\0")
                raise DataError(f"{path} is not text: there is a NUL byte at offset {nul}{WAY_OUT}")
            held, _ = decoder.getstate()
            try:
                text = decoder.decode(data, final=not data)
            except UnicodeDecodeError as error:
                at, byte = offset - len(held) + error.start, error.object[error.start]
                raise DataError(f"{path} is not UTF-8: byte 0x{byte:02x} at offset {at}{WAY_OUT}") from None
            if offset == 0:
                text = text.removeprefix("\ufeff")
            if text:
                yield text
            if not data:
                return
            offset += len(data)


def read_lines(path):
    """The lines of a UTF-8 file, without their ends."""
    begun = []  # of a line that goes on
    for text in read_pieces(path):
        *lines, rest = text.split("\n")
        for line in lines:
            yield "".join([*begun, line]).removesuffix("\r")
            begun = []
        begun.append(rest)
    if line := "".join(begun):
        yield line.removesuffix("\r")


def recut(pieces):
    """The same text in pieces of about PIECE characters, cut only at seams. (Without any seam in sight it is
    cut where it must be.)"""
    rest = ""
    for piece in pieces:
        text, start = rest + piece, 0
        while len(text) - start >= 2 * PIECE:
            seam = next_seam(text, start + PIECE)
            yield text[start:seam]
            start = seam
        rest = text[start:]
    if rest:
        yield rest


def next_seam(text, start):
    """The first seam from `start` on, else the end of what there is."""
    found = SEAM.search(text, start, start + PIECE)
    return found.end() if found else start + PIECE
