"""From a source to a tokenized corpus in the cache: split it, tokenize, write.

A document is assigned to a split by a hash of its content, so neither other documents nor its
position matter, and equal documents stay together.
"""

import hashlib
import json
import math
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from functools import partial
from itertools import chain, islice, pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
from filelock import FileLock
from numpy import ndarray

from configs.cli import expand_user
from configs.errors import DataError
from data.disk import atomic_folder, disk_errors
from data.loader import map_ahead
from data.readers import rechunk
from data.sources import Document, Source
from data.store import TRAIN, VALIDATION, Corpus, TokenWriter, write_index
from data.tokenizers.tokenizer import Tokenizer
from data.tokenizers.train import Trainer

FORMAT = 3  # of a corpus in the cache
LOOKAHEAD = 256  # documents; of fewer, at least one goes to validation
JOB_BYTES = 1 << 19  # encoded at a time by a thread

Report = Callable[..., object]  # (bytes done, total=bytes in total, if they are known)


class Chunk(NamedTuple):
    """A part of a document, or both texts of a pair."""

    split: str
    name: Path | str
    texts: Sequence[str]
    is_last: bool  # of its document
    has_end: bool  # an end token follows

    def n_bytes(self) -> int:
        return sum(len(text.encode()) for text in self.texts)


def split_chunks(source: Source, val_fraction: float) -> Iterator[Chunk]:
    """All text of a source, assigned to train or validation."""
    is_pairs = source.input_kind == "pairs"
    hashed = hashed_documents(source)
    first = list(islice(hashed, LOOKAHEAD))
    if not first:
        raise DataError("there is no text: what was found is empty")
    if len(first) == 1 and not is_pairs:
        yield from cut_document(first[0][1], val_fraction)
        return

    if len(first) < LOOKAHEAD:
        lowest = min(x for x, _ in first)
        val_fraction = max(val_fraction, math.nextafter(lowest, 1))

    for x, document in chain(first, hashed):
        split = VALIDATION if x < val_fraction else TRAIN
        if is_pairs:
            yield Chunk(split, document.name, document.texts, is_last=True, has_end=False)
            continue
        for text, following in pairwise(chain(rechunk(document.chunks()), [""])):
            is_last = not following
            yield Chunk(split, document.name, [text], is_last, has_end=is_last)


def hashed_documents(source: Source) -> Iterator[tuple[float, Document]]:
    """(a hash of its content, from 0 to 1; document) for each that is not empty."""
    for document in source.documents():
        if source.input_kind == "pairs" and not all(map(str.strip, document.texts)):
            raise DataError(f"{document.name}: the source or the target is empty")
        if begin := next(document.chunks(), ""):
            digest = hashlib.blake2b(begin.encode(), digest_size=8).digest()
            yield int.from_bytes(digest) / 2**64, document


def cut_document(document: Document, val_fraction: float) -> Iterator[Chunk]:
    """The end of a single document is for validation. It has no end token to learn."""
    length = sum(map(len, document.chunks()))
    cut = int(length * (1 - val_fraction))
    start = 0

    for text in rechunk(document.chunks()):
        stop = start + len(text)
        n_train = max(cut - start, 0)
        if n_train:
            train = [text[:n_train]]
            yield Chunk(TRAIN, document.name, train, is_last=stop >= cut, has_end=False)
        if stop > cut:
            rest = [text[n_train:]]
            yield Chunk(VALIDATION, document.name, rest, is_last=stop == length, has_end=False)
        start = stop


def prepare(
    source: Source,
    trainer: Trainer,
    specials: Sequence[str],
    cache: str | Path,
    val_fraction: float,
    report: Report,
) -> Corpus:
    """The corpus of a source, from the cache or built now."""
    root = expand_user(cache)
    with disk_errors("cannot use", root):
        root.mkdir(parents=True, exist_ok=True)
    version = source.version()
    options = json.dumps([describe(source), describe(trainer), specials, val_fraction])
    key = hashlib.sha256(json.dumps([FORMAT, version, options]).encode()).hexdigest()
    folder = root / f"{type(source).__name__.lower()}-{key[:16]}"

    if not folder.exists():
        # other processes wait; the lock is released even by a kill
        with disk_errors("cannot write", root), FileLock(folder.with_suffix(".lock")):
            if not folder.exists():
                total = sum(size for _, size, _ in version) or None
                progress = partial(report, total=total)
                with atomic_folder(folder) as draft:
                    made = tokenize(draft, source, trainer, specials, val_fraction, progress)
                    write_index(draft, options, *made)

    return Corpus(folder)


def describe(part: object) -> list:
    """The name of a class, and the options of its object."""
    options = {name: str(value) for name, value in vars(part).items() if name != "cache"}
    return [type(part).__name__, options]


def tokenize(
    folder: Path,
    source: Source,
    trainer: Trainer,
    specials: Sequence[str],
    val_fraction: float,
    report: Callable[[int], object],
) -> tuple[Tokenizer, list[TokenWriter]]:
    """Train the tokenizer, and write the tokens of both splits."""

    def texts(include_val: bool) -> Iterator[str]:
        for chunk in split_chunks(source, val_fraction):
            if include_val or chunk.split == TRAIN:
                yield from chunk.texts

    report(0)
    tokenizer = trainer.train(texts, specials)
    limit = source.max_tokens or sys.maxsize
    jobs = batch_chunks(split_chunks(source, val_fraction))
    workers = min(os.cpu_count() or 1, 16)  # more would wait for the text to be read

    with (
        closing(TokenWriter(folder, TRAIN, tokenizer.vocab_size)) as train,
        closing(TokenWriter(folder, VALIDATION, tokenizer.vocab_size)) as validation,
    ):
        for encoded in map_ahead(partial(encode, tokenizer), jobs, workers, 2 * workers):
            for chunk, texts_ids in encoded:
                part = train if chunk.split == TRAIN else validation
                for ids in texts_ids:
                    part.write(ids[: limit - train.n_tokens] if part is train else ids)
                part.n_bytes += chunk.n_bytes()
                part.n_items += chunk.is_last
            report(train.n_bytes + validation.n_bytes)
            if train.n_tokens >= limit:
                break

    for part in (train, validation):
        if not part.n_tokens:
            reason = f"the {part.split} split is empty with data.val_fraction={val_fraction}"
            raise DataError(f"{reason}; change it, or give more texts that differ")

    return tokenizer, [train, validation]


def batch_chunks(chunks: Iterable[Chunk]) -> Iterator[list[Chunk]]:
    """Lists of chunks that are large enough for a thread."""
    job: list[Chunk] = []
    size = 0

    for chunk in chunks:
        job.append(chunk)
        size += chunk.n_bytes()
        if size >= JOB_BYTES:
            yield job
            job = []
            size = 0

    if job:
        yield job


def encode(tokenizer: Tokenizer, job: list[Chunk]) -> list[tuple[Chunk, list[ndarray]]]:
    """(chunk, the ids of each of its texts)"""
    encoded = []

    for chunk in job:
        try:
            ids = [tokenizer.encode(text) for text in chunk.texts]
        except ValueError as error:
            raise DataError(f"{chunk.name}: {error}") from None
        if chunk.has_end:
            ids[-1] = np.append(ids[-1], tokenizer.specials["end"])
        encoded.append((chunk, ids))

    return encoded
