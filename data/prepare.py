"""From a source to a tokenized corpus in the cache: split into train and validation, tokenize, write.

A text is assigned to a split by a hash of its content, so neither other texts nor its position matter, and
equal texts stay together.
"""

import fcntl
import hashlib
import json
import math
import os
import shutil
import sys
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
from data.readers import CHUNK_CHARS, rechunk
from data.store import FORMAT, Corpus, EncodedChunk, TokenWriter, write_index

TRAIN, VALIDATION = "train", "validation"
LOOKAHEAD = 256  # texts; of fewer, at least one goes to validation
JOB_CHARS = 1 << 19  # encoded at a time by a thread


class Chunk(NamedTuple):
    """A chunk of a document, or both texts of a pair."""

    split: str
    name: str
    texts: tuple[str, ...]
    n_bytes: int
    last: bool  # of its document or pair
    end: bool  # whether an end token follows


def split_chunks(source, val_fraction) -> Iterator[Chunk]:
    """Everything in a source, assigned to train or validation."""
    chunks = text_chunks if source.input_kind == "text" else pair_chunks
    for split, name, texts, last, end in chunks(source, val_fraction):
        try:
            yield Chunk(split, name, texts, sum(len(text.encode()) for text in texts), last, end)
        except UnicodeEncodeError as error:
            surrogate = error.object[error.start]
            raise DataError(f"{name} contains an unpaired surrogate, {surrogate!r}") from None


def text_chunks(source, val_fraction):
    documents = ((next(document.chunks(), ""), document) for document in source.documents())
    documents = ((first_chunk, document) for first_chunk, document in documents if first_chunk)
    first = list(islice(documents, 2))
    if not first:
        raise DataError("there is no text: what was found is empty")
    single = len(first) == 1
    if single:
        cuts = tail_split(first[0][1], val_fraction)
    else:
        cuts = ((*both, 0, sys.maxsize) for both in assign_split(chain(first, documents), val_fraction))
    for split, document, start, stop in cuts:
        chunks = rechunk(slice_chunks(document.chunks(), start, stop))
        chunk = next(chunks)
        for following in chunks:
            yield split, document.name, (chunk,), False, False
            chunk = following
        yield split, document.name, (chunk,), True, not single  # a single document has no end to learn


def pair_chunks(source, val_fraction):
    pairs = ((pair.source, pair) for pair in source.pairs())
    first = list(islice(pairs, 2))
    if len(first) < 2:
        raise DataError(f"at least two pairs are needed, to train and to validate; found {len(first)}")
    for split, pair in assign_split(chain(first, pairs), val_fraction):
        for role in ("source", "target"):
            if not getattr(pair, role).strip():
                raise DataError(f"{pair.name}: the {role} is empty")
        yield split, pair.name, (pair.source, pair.target), True, False


def assign_split(items, val_fraction):
    """(split, item) for each (text, item); of fewer than LOOKAHEAD at least one goes to validation."""

    def uniform(text):  # from 0 to 1
        return int.from_bytes(hashlib.blake2b(text.encode(errors="replace"), digest_size=8).digest()) / 2**64

    hashed = ((uniform(text), item) for text, item in items)
    first = list(islice(hashed, LOOKAHEAD))
    lowest = min(x for x, _ in first)
    if len(first) < LOOKAHEAD and lowest >= val_fraction:
        val_fraction = math.nextafter(lowest, 1)
    for x, item in chain(first, hashed):
        yield VALIDATION if x < val_fraction else TRAIN, item


def tail_split(document, val_fraction):
    """The end of a single document is for validation."""
    length = sum(len(chunk) for chunk in document.chunks())
    cut = int(length * (1 - val_fraction))
    if not 0 < cut < length:
        raise DataError(f"{document.name} holds {length} characters: too few to split off validation text")
    return (TRAIN, document, 0, cut), (VALIDATION, document, cut, length)


def slice_chunks(chunks, start, stop):
    offset = 0
    for chunk in chunks:
        if part := chunk[max(start - offset, 0) : max(stop - offset, 0)]:
            yield part
        offset += len(chunk)


def prepare(source, trainer, specials, *, cache, val_fraction, report=None):
    """The corpus of a source, from the cache or built now, with calls of report(bytes, total or None)."""
    cache = Path(cache).expanduser()
    with disk_errors("cannot use"):
        cache.mkdir(parents=True, exist_ok=True)
        hashes = HashCache(cache / "fingerprints.json")
    options = []
    for part in (source, trainer):
        values = {name: str(value) for name, value in sorted(vars(part).items()) if name != "cache"}
        options.append([type(part).__name__, values])
    stat_key, content_hash = source.stat_key(), source.digest(hashes)
    key = hashlib.sha256(
        json.dumps([FORMAT, content_hash, *options, specials, val_fraction]).encode()
    ).hexdigest()[:16]
    folder = cache / f"{type(source).__name__.lower()}-{key}"
    if not folder.exists():
        with disk_errors("cannot lock"), open(folder.with_suffix(".lock"), "w") as lock:
            fcntl.lockf(lock, fcntl.LOCK_EX)  # other processes wait; it is released even by a kill
            if not folder.exists():
                with atomic_dir(folder) as draft:
                    tokenize_into(draft, source, trainer, specials, val_fraction, report)
                    if source.stat_key() != stat_key:
                        raise DataError("the text changed while it was read; run again")
    return Corpus(folder, hashes)


@contextmanager
def atomic_dir(folder):
    """A draft that is renamed to the folder when complete."""
    draft = folder.with_suffix(".draft")
    with disk_errors("cannot write"):
        shutil.rmtree(draft, ignore_errors=True)  # left by a killed process
        draft.mkdir()
        try:
            yield draft
            sync(draft)
            os.rename(draft, folder)
            sync(folder.parent)
        except BaseException:
            shutil.rmtree(draft, ignore_errors=True)
            raise


def tokenize_into(draft, source, trainer, specials, val_fraction, report):
    def texts(include_val):
        left = math.inf if source.max_tokens is None else source.max_tokens + JOB_CHARS + 2 * CHUNK_CHARS
        for chunk in split_chunks(source, val_fraction):
            if include_val or chunk.split == TRAIN:
                yield from chunk.texts
            if chunk.split == TRAIN:
                left -= sum(map(len, chunk.texts))
            if left < 0:  # a token has at least one character
                return

    tokenizer = trainer.train(texts, specials)
    dtype = "uint16" if tokenizer.vocab_size <= 1 << 16 else "uint32"
    writers = {split: TokenWriter(draft, split, dtype, source.input_kind) for split in (TRAIN, VALIDATION)}
    with writers[TRAIN] as train, writers[VALIDATION]:
        total, done = source.n_bytes(), 0
        jobs = job_batches(split_chunks(source, val_fraction))
        for encoded in ordered_map(lambda job: encode(job, tokenizer), jobs):
            for split, chunk in encoded.items():
                if source.max_tokens is not None and split == TRAIN:
                    ids = chunk.ids[: source.max_tokens - train.n_tokens]
                    n_bytes = round(chunk.n_bytes * len(ids) / len(chunk.ids))
                    chunk = chunk._replace(ids=ids, n_bytes=n_bytes)
                writers[split].write(chunk)
                done += chunk.n_bytes
            if report:
                report(done, total)
            if source.max_tokens is not None and train.n_tokens >= source.max_tokens:
                break
    for split, hint in ((VALIDATION, "raise it"), (TRAIN, "lower it, or give texts that differ")):
        if not writers[split].n_tokens:
            raise DataError(f"the {split} split is empty with data.val_fraction={val_fraction}; {hint}")
    write_index(draft, tokenizer, dtype, source.input_kind, writers)


def job_batches(chunks):
    """Lists of chunks that are large enough for a thread."""
    job, size = [], 0
    for chunk in chunks:
        job.append(chunk)
        size += chunk.n_bytes
        if size >= JOB_CHARS:
            yield job
            job, size = [], 0
    if job:
        yield job


def encode(job, tokenizer):
    """{split: EncodedChunk}"""
    end, encoded = np.array([tokenizer.specials["end"]]), {}
    for split in {chunk.split for chunk in job}:
        chunks, ids, lengths = [chunk for chunk in job if chunk.split == split], [], []
        for chunk in chunks:
            try:
                texts = [tokenizer.encode(text) for text in chunk.texts]
            except ValueError as error:
                raise DataError(f"{chunk.name}: {error}") from None
            lengths += map(len, texts)
            ids += [*texts, end] if chunk.end else texts
        n_bytes, n_items = sum(chunk.n_bytes for chunk in chunks), sum(chunk.last for chunk in chunks)
        encoded[split] = EncodedChunk(np.concatenate(ids), lengths, n_bytes, n_items)
    return encoded


def ordered_map(function, jobs):
    """map(function, jobs) on all cores, with few jobs in flight. tiktoken releases the GIL while encoding, so
    threads are as fast as processes and copy no text."""
    workers = os.cpu_count() or 1
    with ThreadPoolExecutor(workers) as pool:
        running = deque()
        for job in jobs:
            running.append(pool.submit(function, job))
            if len(running) > 2 * workers:
                yield running.popleft().result()
        while running:
            yield running.popleft().result()
