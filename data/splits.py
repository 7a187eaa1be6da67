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

    exceptions: dict[str, float]  # documents with a train_share of their own
    held_out_fraction: float  # of all others

    def train_share(self, key: str) -> float:
        """How much of a document is for training: all (1), nothing (0) or its first part."""
        is_train = int(key, 16) / 2**64 > self.held_out_fraction
        return self.exceptions.get(key, float(is_train))


def hold_out(source: Source) -> HeldOut:
    """What a source holds out by itself: the files of val_path, if there are any; else a fraction
    of the documents, at least one if there are few; of a single text, its end."""
    skipped: list[str] = []
    keys = [key for key, _ in islice(hashed_documents(source, skipped), LOOKAHEAD)]
    if not keys:
        reason = skipped[0] if skipped else "the files are empty"
        raise DataError(f"there is no text: {reason}")

    if source.validation_sources():
        return HeldOut({}, 0.0)

    if len(keys) == 1 and source.input_kind == "text":
        return HeldOut({keys[0]: 1 - source.val_fraction}, 0.0)

    held_out = HeldOut({}, source.val_fraction)
    if len(keys) < LOOKAHEAD and all(map(held_out.train_share, keys)):
        held_out.exceptions[min(keys)] = 0.0
    return held_out


def split_documents(
    source: Source, skipped: list[str], held_out: HeldOut
) -> Iterator[tuple[str, Document]]:
    """Yield each document with its split. `skipped` gets an item for each that is left out."""
    val_sources = source.validation_sources()

    for key, document in hashed_documents(source, skipped):
        share = held_out.train_share(key)
        pieces = [(TRAIN if share else VALIDATION, document)]
        if 0 < share < 1:
            pieces = list(cut(document, share))
        for split, piece in pieces:
            # a val_path is the whole validation set; what others in a mix hold out is dropped
            if split == TRAIN or not val_sources:
                yield split, piece

    for part in val_sources:
        for _, document in hashed_documents(part, skipped):
            yield VALIDATION, document


def cut(document: Document, share: float) -> Iterator[tuple[str, Document]]:
    """The parts of a document for each split, to be read once."""
    length = sum(map(len, document.chunks()))
    end = int(length * share)
    for split, start, stop in ((TRAIN, 0, end), (VALIDATION, end, length)):
        yield split, Document(document.name, slice_chunks(document.chunks(), start, stop))


def hashed_documents(source: Source, skipped: list[str]) -> Iterator[tuple[str, Document]]:
    """Yield (a hash of how it begins, document) for each that can be used and is not empty."""
    for document in source.documents():
        try:
            begin = read_begin(document, source)
        except DataError as error:
            skip(source, error, skipped)
            continue

        if begin:
            yield hashlib.blake2b(begin, digest_size=8).hexdigest(), document


def skip(source: Source, error: DataError, skipped: list[str]) -> None:
    """Note what is left out, the first few by their errors; or raise the error."""
    if source.on_error == "error":
        raise error
    skipped.append(str(error) if len(skipped) < MAX_NAMED else "")


def read_begin(document: Document, source: Source) -> bytes:
    """What is hashed: the first chunk of a text, the source of a pair, all of a conversation; or
    an error if the document cannot be used."""
    is_pair = source.input_kind in ("pairs", "labels")
    n_chunks = None if source.input_kind == "chat" else 1  # many conversations begin alike

    try:
        begin = "".join(islice(document.chunks(), n_chunks)).encode()
        if is_pair or source.on_error == "skip":  # otherwise a blank text is kept
            refuse_blank(document, is_pair)
    except UnicodeEncodeError:  # also from half a character in JSON, such as \ud83d
        raise DataError(
            f"{document.name} has bytes that are not text; set data.encoding, or data.on_error=skip"
        ) from None
    return begin


def refuse_blank(document: Document, is_pair: bool) -> None:
    """Refuse a pair without one of its texts, or a document without any."""
    is_blank = [not text.encode().strip() for text in document.chunks()]
    if is_pair and any(is_blank):
        raise DataError(f"{document.name}: the source or the target (or label) is empty")
    if all(is_blank):
        raise DataError(f"{document.name}: the text is empty")
