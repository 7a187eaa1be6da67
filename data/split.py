"""Split: what is kept for validation. A text goes there by what it says, so that neither other texts nor its
place among them matter, and equal ones stay together."""

import hashlib
import math
from collections.abc import Iterator
from itertools import chain, islice
from typing import NamedTuple

from data.documents import recut
from data.errors import DataError

TRAIN, VALIDATION = "train", "validation"
AHEAD = 256  # texts looked at before it is said that none of them falls to validation


class Portion(NamedTuple):
    """What is encoded at once: a piece of a document, or both texts of a pair."""

    part: str
    name: str
    texts: tuple[str, ...]
    n_bytes: int
    last: bool  # of its document or pair
    end: bool  # whether an end token follows


def portions(source, share) -> Iterator[Portion]:
    """All that a source holds, each for training or for validation."""
    found = text_portions if source.reads == "text" else pair_portions
    for part, name, texts, last, end in found(source, share):
        try:
            yield Portion(part, name, texts, sum(len(text.encode()) for text in texts), last, end)
        except UnicodeEncodeError as error:
            half = error.object[error.start]
            raise DataError(
                f"{name} holds half a character, {half!r}: a surrogate without its other"
            ) from None


def text_portions(source, share):
    openings = ((opening(document), document) for document in source.documents())
    begun = (both for both in openings if both[0])
    first = list(islice(begun, 2))
    if not first:
        raise DataError("there is no text: what was found is empty")
    alone = len(first) == 1
    parts = tail_split(first[0][1], share) if alone else assigned(chain(first, begun), share)
    for part, document in parts:
        pieces = recut(document.pieces())
        piece = next(pieces)
        for following in pieces:
            yield part, document.name, (piece,), False, False
            piece = following
        yield part, document.name, (piece,), True, not alone  # one document has no end to learn


def pair_portions(source, share):
    known = ((pair.source, pair) for pair in source.pairs())
    first = list(islice(known, 2))
    if len(first) < 2:
        raise DataError(f"pairs are needed to train and to validate; found {len(first)}")
    for part, pair in assigned(chain(first, known), share):
        for role in ("source", "target"):
            if not getattr(pair, role).strip():
                raise DataError(f"{pair.name}: the {role} is empty")
        yield part, pair.name, (pair.source, pair.target), True, False


def opening(document):
    """What a document is known by: its first piece."""
    return next(document.pieces(), "")


def assigned(known, share):
    """(part, item) for each (text, item). Of a few at least one is for validation: the likeliest."""
    known = ((chance(text), item) for text, item in known)
    ahead = list(islice(known, AHEAD))
    likeliest = min(at for at, _ in ahead)
    if len(ahead) < AHEAD and likeliest >= share:
        share = math.nextafter(likeliest, 1)
    for at, item in chain(ahead, known):
        yield VALIDATION if at < share else TRAIN, item


def chance(text):
    """A number from 0 to 1 that is the text's own."""
    return int.from_bytes(hashlib.blake2b(text.encode("utf-8", "replace"), digest_size=8).digest()) / 2**64


def tail_split(document, share):
    """A document alone is cut near its end."""
    length = sum(len(piece) for piece in document.pieces())
    cut = int(length * (1 - share))
    if not 0 < cut < length:
        raise DataError(f"{document.name} holds {length} characters: too few to keep some for validation")
    yield TRAIN, document._replace(pieces=lambda: between(document.pieces(), 0, cut))
    yield VALIDATION, document._replace(pieces=lambda: between(document.pieces(), cut, length))


def between(pieces, start, stop):
    at = 0
    for piece in pieces:
        if part := piece[max(start - at, 0) : max(stop - at, 0)]:
            yield part
        at += len(piece)
