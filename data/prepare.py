"""Split: what is kept for validation. A text goes there by what it says, so that neither other texts nor its
place among them matter, and equal ones stay together."""

import fcntl
import hashlib
import json
import math
import os
import shutil
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import chain, islice
from pathlib import Path
from typing import NamedTuple

import numpy as np

from configs.errors import DataError
from data.disk import disk_errors, sync
from data.files import HashCache
from data.readers import PIECE, rechunk
from data.store import FORMAT, Corpus, EncodedChunk, TokenWriter, described_file, write_json

TRAIN, VALIDATION = "train", "validation"
AHEAD = 256  # texts looked at before it is said that none of them falls to validation


class Chunk(NamedTuple):
    """What is encoded at once: a piece of a document, or both texts of a pair."""

    part: str
    name: str
    texts: tuple[str, ...]
    n_bytes: int
    last: bool  # of its document or pair
    end: bool  # whether an end token follows


def split_chunks(source, share) -> Iterator[Chunk]:
    """All that a source holds, each for training or for validation."""
    found = text_portions if source.input_kind == "text" else pair_portions
    for part, name, texts, last, end in found(source, share):
        try:
            yield Chunk(part, name, texts, sum(len(text.encode()) for text in texts), last, end)
        except UnicodeEncodeError as error:
            half = error.object[error.start]
            raise DataError(
                f"{name} holds half a character, {half!r}: a surrogate without its other"
            ) from None


def text_portions(source, share):
    openings = ((first_chunk(document), document) for document in source.documents())
    begun = (both for both in openings if both[0])
    first = list(islice(begun, 2))
    if not first:
        raise DataError("there is no text: what was found is empty")
    file_lock = len(first) == 1
    parts = tail_split(first[0][1], share) if file_lock else assign_split(chain(first, begun), share)
    for part, document in parts:
        pieces = rechunk(document.pieces())
        piece = next(pieces)
        for following in pieces:
            yield part, document.name, (piece,), False, False
            piece = following
        yield part, document.name, (piece,), True, not file_lock  # one document has no end to learn


def pair_portions(source, share):
    known = ((pair.source, pair) for pair in source.pairs())
    first = list(islice(known, 2))
    if len(first) < 2:
        raise DataError(f"pairs are needed to train and to validate; found {len(first)}")
    for part, pair in assign_split(chain(first, known), share):
        for role in ("source", "target"):
            if not getattr(pair, role).strip():
                raise DataError(f"{pair.name}: the {role} is empty")
        yield part, pair.name, (pair.source, pair.target), True, False


def first_chunk(document):
    """What a document is known by: its first piece."""
    return next(document.pieces(), "")


def assign_split(known, share):
    """(part, item) for each (text, item). Of a few at least one is for validation: the likeliest."""
    known = ((hash_to_unit(text), item) for text, item in known)
    ahead = list(islice(known, AHEAD))
    likeliest = min(at for at, _ in ahead)
    if len(ahead) < AHEAD and likeliest >= share:
        share = math.nextafter(likeliest, 1)
    for at, item in chain(ahead, known):
        yield VALIDATION if at < share else TRAIN, item


def hash_to_unit(text):
    """A number from 0 to 1 that is the text's own."""
    return int.from_bytes(hashlib.blake2b(text.encode("utf-8", "replace"), digest_size=8).digest()) / 2**64


def tail_split(document, share):
    """A document alone is cut near its end."""
    length = sum(len(piece) for piece in document.pieces())
    cut = int(length * (1 - share))
    if not 0 < cut < length:
        raise DataError(f"{document.name} holds {length} characters: too few to keep some for validation")
    yield TRAIN, document._replace(pieces=lambda: slice_chunks(document.pieces(), 0, cut))
    yield VALIDATION, document._replace(pieces=lambda: slice_chunks(document.pieces(), cut, length))


def slice_chunks(pieces, start, stop):
    at = 0
    for piece in pieces:
        if part := piece[max(start - at, 0) : max(stop - at, 0)]:
            yield part
        at += len(piece)


JOB = 1 << 19  # characters that one thread encodes at a time


def prepare(source, vocabulary, specials, *, cache, val_fraction, report=None):
    """The corpus of a source, from the cache or made now. `report` is told (bytes done, bytes in all or
    None) while it is made."""
    cache = Path(cache).expanduser()
    with disk_errors("cannot use"):
        cache.mkdir(parents=True, exist_ok=True)
        fingerprints = HashCache(cache / "fingerprints.json")
    options = [cache_key_part(source), cache_key_part(vocabulary), specials, val_fraction]
    stamp, held = source.stamp(), source.digest(fingerprints)
    key = hashlib.sha256(json.dumps([FORMAT, held, *options]).encode()).hexdigest()[:16]
    folder = cache / f"{type(source).__name__.lower()}-{key}"
    if not folder.exists():
        with file_lock(folder.with_suffix(".lock")):
            if not folder.exists():
                with atomic_dir(folder) as draft:
                    tokenize_into(draft, source, vocabulary, specials, val_fraction, report)
                    if source.stamp() != stamp:
                        raise DataError("the text changed while it was read; run again")
    return Corpus(folder, fingerprints)


def cache_key_part(part):
    """Its kind and options, but for where things are kept."""
    options = {name: str(value) for name, value in sorted(vars(part).items()) if name != "cache"}
    return [type(part).__name__, options]


@contextmanager
def file_lock(path):
    """One process at a time; others wait. The lock goes with the process that holds it."""
    with disk_errors("cannot lock"), open(path, "w") as file:
        fcntl.lockf(file, fcntl.LOCK_EX)
        yield


@contextmanager
def atomic_dir(folder):
    """A draft, which takes the folder's name when it is complete."""
    draft = folder.with_suffix(".draft")
    with disk_errors("cannot write"):
        shutil.rmtree(draft, ignore_errors=True)  # what a killed build has left
        draft.mkdir()
        try:
            yield draft
            sync(draft)
            os.rename(draft, folder)
            sync(folder.parent)
        except BaseException:
            shutil.rmtree(draft, ignore_errors=True)
            raise


def tokenize_into(draft, source, vocabulary, specials, share, report):
    def texts(whole):
        left = float("inf") if source.max_tokens is None else source.max_tokens + JOB + 2 * PIECE
        for portion in split_chunks(source, share):
            if whole or portion.part == TRAIN:
                yield from portion.texts
            if portion.part == TRAIN:
                left -= sum(map(len, portion.texts))
            if left < 0:  # a token is a character at the least
                return

    tokenizer = vocabulary.make(texts, specials)
    dtype = "uint16" if tokenizer.vocab_size <= 1 << 16 else "uint32"
    with (
        TokenWriter(draft, TRAIN, dtype, source.input_kind) as train,
        TokenWriter(draft, VALIDATION, dtype, source.input_kind) as validation,
    ):
        writers = {TRAIN: train, VALIDATION: validation}
        encode_all(source, tokenizer, share, writers, report)
    for part, way_out in ((VALIDATION, "raise it"), (TRAIN, "lower it, or give texts that differ")):
        if not writers[part].n_tokens:
            raise DataError(f"no text falls to {part} where data.val_fraction is {share}; {way_out}")
    write_json(draft / "tokenizer.json", tokenizer.state())
    index = {
        "format": FORMAT,
        "input_kind": source.input_kind,
        "dtype": dtype,
        "vocab_size": tokenizer.vocab_size,
    }
    index |= {"tokenizer": described_file(draft / "tokenizer.json")}
    write_json(draft / "index.json", index | {"parts": {n: w.entry() for n, w in writers.items()}})


def encode_all(source, tokenizer, share, writers, report):
    total, done = source.n_bytes(), 0
    for parts in ordered_map(lambda job: encode(job, tokenizer), job_batches(split_chunks(source, share))):
        for part, encoded in parts.items():
            if source.max_tokens is not None and part == TRAIN:
                encoded = encoded.first(source.max_tokens - writers[TRAIN].n_tokens)
            writers[part].write(encoded)
            done += encoded.n_bytes
        if report:
            report(done, total)
        if source.max_tokens is not None and writers[TRAIN].n_tokens >= source.max_tokens:
            return


def job_batches(stream):
    """Portions together, until there are enough for a thread to be worth it."""
    job, size = [], 0
    for portion in stream:
        job.append(portion)
        size += portion.n_bytes
        if size >= JOB:
            yield job
            job, size = [], 0
    if job:
        yield job


def encode(job, tokenizer):
    """{part: Encoded}"""
    return {
        part: encode_part([portion for portion in job if portion.part == part], tokenizer)
        for part in {portion.part for portion in job}
    }


def encode_part(split_chunks, tokenizer):
    end, ids, lengths = np.array([tokenizer.specials["end"]]), [], []
    for portion in split_chunks:
        for text in portion.texts:
            try:
                ids.append(tokenizer.encode(text))
            except ValueError as error:
                raise DataError(f"{portion.name}: {error}") from None
            lengths.append(len(ids[-1]))
        if portion.end:
            ids.append(end)
    n_bytes, n_items = sum(p.n_bytes for p in split_chunks), sum(p.last for p in split_chunks)
    return EncodedChunk(np.concatenate(ids), lengths, n_bytes, n_items)


def ordered_map(function, job_batches):
    """map(function, jobs) on every core, with few jobs in flight. tiktoken lets go of the interpreter while
    it encodes, so threads do what processes would, without copies of the text."""
    workers = os.cpu_count() or 1
    with ThreadPoolExecutor(workers) as pool:
        running = deque()
        try:
            for job in job_batches:
                running.append(pool.submit(function, job))
                if len(running) > 2 * workers:
                    yield running.popleft().result()
            while running:
                yield running.popleft().result()
        finally:
            for future in running:
                future.cancel()
