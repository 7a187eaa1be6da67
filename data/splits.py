"""Splits: which documents are for training, and which are held out for validation.

A document is assigned by a hash of how it begins, so neither other documents nor its position
matter, and equal documents stay together.
"""

import hashlib
from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple

from configs.errors import DataError
from data.readers import slice_chunks
from data.sources import Document, Source
from data.store import TRAIN, VALIDATION

LOOKAHEAD = 256  # documents; if there are fewer, at least one is held out
MAX_NAMED = 5  # skipped documents that a warning names


class HeldOut(NamedTuple):
    """What is held out for validation, by the hash of each document."""

    exceptions: dict[str, float]  # 1 is for training, 0 is not, and between them a text is cut
    held_out_fraction: float  # of all other documents

    def train_share(self, key: str) -> float:
        is_train = int(key, 16) / 2**64 > self.held_out_fraction
        return self.exceptions.get(key, float(is_train))


def hold_out(source: Source) -> HeldOut:
    """The files of val_path, if there are any; else a fraction of the documents, at least one if
    there are few; of a single text, its end."""
    skipped: list[str] = []
    keys = [key for key, _ in islice(hashed_documents(source, skipped), LOOKAHEAD)]
    if not keys:
        reason = skipped[0] if skipped else "the files are empty"
        raise DataError(f"there is no text: {reason}")

    if source.validation_sources():
        return HeldOut({}, 0.0)

    usual = HeldOut({}, source.val_fraction)
    exceptions = {}
    if len(keys) == 1 and source.input_kind == "text":
        exceptions = {keys[0]: 1 - source.val_fraction}
    elif len(keys) < LOOKAHEAD and all(map(usual.train_share, keys)):
        exceptions = {min(keys): 0.0}
    return usual._replace(exceptions=exceptions)


def split_documents(
    source: Source, skipped: list[str], held_out: HeldOut
) -> Iterator[tuple[str, Document]]:
    """Yield each document with its split. `skipped` gets an item for each that is left out."""
    parts = source.validation_sources()

    for key, document in hashed_documents(source, skipped):
        share = held_out.train_share(key)
        if 0 < share < 1:
            pieces = list(cut(document, share))
        else:
            pieces = [(TRAIN if share else VALIDATION, document)]

        if parts:  # they are its validation set; only in a mix is anything else held out
            pieces = [piece for piece in pieces if piece[0] == TRAIN]
        yield from pieces
    for part in parts:
        for _, document in hashed_documents(part, skipped):
            yield VALIDATION, document


def cut(document: Document, share: float) -> Iterator[tuple[str, Document]]:
    """The parts of a document for each split, to be read once."""
    length = sum(map(len, document.chunks()))
    end = int(length * share)
    for split, start, stop in ((TRAIN, 0, end), (VALIDATION, end, length)):
        yield split, Document(document.name, slice_chunks(document.chunks(), start, stop))


def hashed_documents(source: Source, skipped: list[str]) -> Iterator[tuple[str, Document]]:
    """Yield (a hash of how it begins, document) for each document that is not empty."""
    for document in source.documents():
        try:
            begin = read_begin(document, source)
        except DataError as error:
            skip(source, error, skipped)
            continue

        if begin:
            yield hashlib.blake2b(begin, digest_size=8).hexdigest(), document


def skip(source: Source, error: DataError, skipped: list[str]) -> None:
    """Note what is left out, or raise its error."""
    if source.on_error == "error":
        raise error
    skipped.append(str(error) if len(skipped) < MAX_NAMED else "")


def read_begin(document: Document, source: Source) -> bytes:
    """What is hashed: the first chunk of a text, the source of a pair, all of a conversation."""
    is_pair = source.input_kind in ("pairs", "labels")
    n_chunks = None if source.input_kind == "chat" else 1  # many may begin alike

    try:
        begin = "".join(islice(document.chunks(), n_chunks)).encode()
        if is_pair or source.on_error == "skip":
            refuse_blank(document, is_pair)
    except UnicodeEncodeError:  # also from half a character in JSON, such as \ud83d
        hint = "set data.encoding, or data.on_error=skip"
        raise DataError(f"{document.name} has bytes that are not text; {hint}") from None
    return begin


def refuse_blank(document: Document, is_pair: bool) -> None:
    is_blank = [not text.encode().strip() for text in document.chunks()]
    if is_pair and any(is_blank):
        raise DataError(f"{document.name}: the source or the target (or label) is empty")
    if all(is_blank):
        raise DataError(f"{document.name}: the text is empty")
