"""Splits: which documents are for training, and which are held out for validation.

A document is assigned by a hash of how it begins, so neither other documents nor its position
matter, and equal documents stay together.
"""

import hashlib
from collections.abc import Iterator
from itertools import chain, islice
from typing import NamedTuple

from configs.errors import DataError
from data.readers import slice_chunks
from data.sources import Document, Source
from data.store import TRAIN, VALIDATION

LOOKAHEAD = 256  # documents; of fewer, at least one goes to validation
MAX_NAMED = 5  # of the documents that are skipped
Hashed = tuple[float, Document]


class HeldOut(NamedTuple):
    """What a source of a mix has to respect, so that no other trains on what is validated."""

    shares: dict[float, float]  # of some documents, by hash: how much is for training
    reserved: float = 0.0  # of the others, hashes up to here are not for training


ALONE = HeldOut({})


def split_documents(
    source: Source, skipped: list[str], held_out: HeldOut = ALONE
) -> Iterator[tuple[str, Document]]:
    """Each document with its split. `skipped` gets an item for each that is left out."""
    documents = hashed_documents(source, skipped)
    first = list(islice(documents, LOOKAHEAD))
    if not first:
        reason = skipped[0] if skipped else "what was found is empty"
        raise DataError(f"there is no text: {reason}")

    parts = source.held_out()
    fraction = 0.0 if parts else source.val_fraction
    shares = held_out.shares | training_shares(source, first, held_out.shares)
    for number, document in chain(first, documents):
        if number in shares:
            pieces = cut(document, shares[number])
            yield from (piece for piece in pieces if piece[0] == TRAIN or not parts)
        elif number <= fraction:
            yield VALIDATION, document
        elif number > held_out.reserved:
            yield TRAIN, document

    for part in parts:  # and nothing else is for validation
        for _, document in hashed_documents(part, skipped):
            yield VALIDATION, document


def training_shares(
    source: Source, first: list[Hashed], decided: dict[float, float]
) -> dict[float, float]:
    """Of few documents, how much of each is for training, where that is not decided yet. A single one
    is cut: its end is for validation."""
    numbers = [number for number, _ in first]
    open_numbers = [number for number in numbers if number not in decided]
    if len(first) == LOOKAHEAD or source.held_out() or not open_numbers:
        return {}
    if len(first) == 1 and source.input_kind == "text":
        return {open_numbers[0]: 1 - source.val_fraction}
    highest = source.val_fraction
    if all(decided.get(number, 1) == 1 for number in numbers):  # at least one is for validation
        highest = max(highest, min(open_numbers))
    return {number: float(number > highest) for number in open_numbers}


def cut(document: Document, share: float) -> Iterator[tuple[str, Document]]:
    if share in (0, 1):
        yield TRAIN if share else VALIDATION, document
        return
    length = sum(map(len, document.chunks()))
    end = int(length * share)
    yield TRAIN, Document(document.name, slice_chunks(document.chunks(), 0, end))
    yield VALIDATION, Document(document.name, slice_chunks(document.chunks(), end, length))


def hashed_documents(source: Source, skipped: list[str]) -> Iterator[Hashed]:
    """(a hash of how it begins, from 0 to 1; document) for each that is not empty."""
    for document in source.documents():
        try:
            begin = read_begin(document, source)
        except DataError as error:
            if source.on_error == "error":
                raise
            skipped.append(str(error) if len(skipped) < MAX_NAMED else "")
            continue
        if begin:
            digest = hashlib.blake2b(begin, digest_size=8).digest()
            yield int.from_bytes(digest) / 2**64, document


def read_begin(document: Document, source: Source) -> bytes:
    """What is hashed: the first chunk of a text, the source of a pair, all of a conversation."""
    is_pair = source.input_kind == "pairs"
    n_chunks = None if source.input_kind == "chat" else 1  # many may begin alike
    try:
        begin = "".join(islice(document.chunks(), n_chunks)).encode()
        if is_pair or source.on_error == "skip":
            is_blank = [not text.encode().strip() for text in document.chunks()]
            if is_pair and any(is_blank):
                raise DataError(f"{document.name}: the source or the target is empty")
            if all(is_blank):
                raise DataError(f"{document.name}: the text is empty")
    except UnicodeEncodeError:  # also of half a character in JSON, such as \ud83d
        hint = "set data.encoding, or data.on_error=skip"
        raise DataError(f"{document.name} has bytes that are no text; {hint}") from None
    return begin
