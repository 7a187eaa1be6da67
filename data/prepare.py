"""From a source to a tokenized corpus in the cache: split into train and validation, tokenize, write.

A text is assigned to a split by a hash of its content, so neither other texts nor its position matter, and
equal texts stay together.
"""

import hashlib
import json
import math
import os
import shutil
import sys
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from itertools import chain, islice, pairwise
from typing import NamedTuple

import numpy as np
from filelock import lock_descriptor

from configs.cli import expand_user
from configs.errors import DataError
from data.disk import HashCache, disk_errors, open_plain, sync_folder, write_synced
from data.readers import CHUNK_CHARS, rechunk
from data.store import SPLITS, Corpus, TokenWriter, write_index

FORMAT = 2  # of a corpus in the cache
TRAIN, VALIDATION = SPLITS
LOOKAHEAD = 256  # texts; of fewer, at least one goes to validation
JOB_CHARS = 1 << 19  # encoded at a time by a thread


class Chunk(NamedTuple):
    """A chunk of a document, or both texts of a pair."""

    split: str
    name: str
    texts: list[str]
    n_bytes: int
    last: bool  # of its document or pair
    end: bool  # whether an end token follows


def split_chunks(source, val_fraction):
    """All text of a source as Chunks, assigned to train or validation."""
    chunks = text_chunks if source.input_kind == "text" else pair_chunks
    for split, name, texts, last, end in chunks(source, val_fraction):
        try:
            yield Chunk(split, name, texts, sum(len(text.encode()) for text in texts), last, end)
        except UnicodeEncodeError as error:
            raise DataError(
                f"{name} contains an unpaired surrogate, {error.object[error.start]!r}"
            ) from None


def text_chunks(source, val_fraction):
    documents = ((text, doc) for doc in source.documents() if (text := next(doc.chunks(), "")))
    first = list(islice(documents, 2))
    if not first:
        raise DataError("there is no text: what was found is empty")
    if single := len(first) == 1:  # its end is for validation
        [(_, document)] = first
        length = sum(map(len, document.chunks()))
        cut = int(length * (1 - val_fraction))
        if not 0 < cut < length:
            reason = f"too few characters ({length:,}) for data.val_fraction={val_fraction}"
            raise DataError(f"{document.name} has {reason}")
        cuts = (TRAIN, document, 0, cut), (VALIDATION, document, cut, length)
    else:
        cuts = (
            (*both, 0, sys.maxsize) for both in assign_split(chain(first, documents), val_fraction)
        )
    for split, document, start, stop in cuts:
        chunks = rechunk(slice_chunks(document.chunks(), start, stop))
        for chunk, following in pairwise(chain(chunks, [None])):
            last = following is None
            yield (
                split,
                document.name,
                [chunk],
                last,
                last and not single,
            )  # which has no end to learn


def pair_chunks(source, val_fraction):
    pairs = ((pair[1], pair) for pair in source.pairs())
    first = list(islice(pairs, 2))
    if len(first) < 2:
        raise DataError(
            f"at least two pairs are needed, to train and to validate; found {len(first)}"
        )
    for split, (name, *texts) in assign_split(chain(first, pairs), val_fraction):
        for role, text in zip(("source", "target"), texts, strict=True):
            if not text.strip():
                raise DataError(f"{name}: the {role} is empty")
        yield split, name, texts, True, False


def assign_split(items, val_fraction):
    """(split, item) for each (text, item); of fewer than LOOKAHEAD at least one goes to validation."""
    hashes = (
        (hashlib.blake2b(text.encode(errors="replace"), digest_size=8), item)
        for text, item in items
    )
    hashed = ((int.from_bytes(h.digest()) / 2**64, item) for h, item in hashes)  # from 0 to 1
    first = list(islice(hashed, LOOKAHEAD))
    lowest = min(x for x, _ in first)
    if len(first) < LOOKAHEAD and lowest >= val_fraction:
        val_fraction = math.nextafter(lowest, 1)
    for x, item in chain(first, hashed):
        yield VALIDATION if x < val_fraction else TRAIN, item


def slice_chunks(chunks, start, stop):
    offset = 0
    for chunk in chunks:
        if part := chunk[max(start - offset, 0) : max(stop - offset, 0)]:
            yield part
        offset += len(chunk)


def prepare(source, trainer, specials, cache, val_fraction, report=None):
    """The corpus of a source, from the cache or built now, with calls of report(bytes, total or None)."""
    cache = expand_user(cache)
    with disk_errors("cannot use"):
        cache.mkdir(parents=True, exist_ok=True)
        hashes = HashCache(cache / "fingerprints.json")
    options = []
    for part in (source, trainer):
        values = {name: str(value) for name, value in sorted(vars(part).items()) if name != "cache"}
        options.append([type(part).__name__, values])
    stat_key, content_hash = source.stat_key(), source.digest(hashes)
    key = json.dumps([FORMAT, content_hash, *options, specials, val_fraction]).encode()
    folder = cache / f"{type(source).__name__.lower()}-{hashlib.sha256(key).hexdigest()[:16]}"
    if folder.exists():
        return Corpus(folder, hashes, source.input_kind)
    with disk_errors("cannot lock"), os.fdopen(open_plain(folder.with_suffix(".lock"))) as lock:
        lock_descriptor(lock.fileno())  # other processes wait; it is released even by a kill
        if not folder.exists():
            draft = folder.with_suffix(".draft")
            with disk_errors("cannot write"):
                shutil.rmtree(draft, ignore_errors=True)  # left by a killed process
                draft.mkdir()
                try:
                    tokenize_into(draft, source, trainer, specials, val_fraction, report)
                    if source.stat_key() != stat_key:
                        raise DataError("the text changed while it was read; run again")
                    sync_folder(draft)
                    os.rename(draft, folder)
                    sync_folder(cache)
                finally:
                    shutil.rmtree(draft, ignore_errors=True)
    return Corpus(folder, hashes, source.input_kind)


def tokenize_into(draft, source, trainer, specials, val_fraction, report):
    report = report or (lambda done, total: None)
    limit = math.inf if source.max_tokens is None else source.max_tokens

    def texts(include_val):
        left = limit + JOB_CHARS + 2 * CHUNK_CHARS
        for chunk in split_chunks(source, val_fraction):
            if include_val or chunk.split == TRAIN:
                yield from chunk.texts
            if chunk.split == TRAIN:
                left -= sum(map(len, chunk.texts))
            if left < 0:  # a token has at least one character
                return

    total, done = source.n_bytes(), 0
    report(done, total)
    tokenizer = trainer.train(texts, specials)
    options = tokenizer.vocab_size, source.input_kind
    writers = {split: TokenWriter(draft, split, *options) for split in SPLITS}
    with writers[TRAIN] as train, writers[VALIDATION]:
        jobs = job_batches(split_chunks(source, val_fraction))
        for encoded in ordered_map(lambda job: encode(job, tokenizer), jobs):
            for split, (ids, lengths, n_bytes, n_items) in encoded.items():
                if split == TRAIN and (left := limit - train.n_tokens) < len(ids):
                    n_bytes = math.ceil(n_bytes * left / len(ids))
                    ids = ids[:left]
                writers[split].write(ids, lengths, n_bytes, n_items)
                done += n_bytes
            report(done, total)
            if train.n_tokens >= limit:
                break
    for split, hint in ((VALIDATION, "raise it"), (TRAIN, "lower it, or give texts that differ")):
        if not writers[split].n_tokens:
            raise DataError(
                f"the {split} split is empty with data.val_fraction={val_fraction}; {hint}"
            )
    file = write_synced(draft / "tokenizer.json", [json.dumps(tokenizer.state()).encode()])
    write_index(draft / "index.json", source.input_kind, file, writers)


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
    """{split: (the concatenated ids of its texts, the length of each text, n_bytes, n_items)}"""
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
        n_bytes, n_items = (
            sum(chunk.n_bytes for chunk in chunks),
            sum(chunk.last for chunk in chunks),
        )
        encoded[split] = np.concatenate(ids), lengths, n_bytes, n_items
    return encoded


def ordered_map(function, jobs):
    """map(function, jobs), a few at once in threads: tiktoken releases the GIL while it encodes."""
    workers = min(os.cpu_count() or 1, 16)  # more would wait for the text to be read
    with ThreadPoolExecutor(workers) as pool:
        futures = (pool.submit(function, job) for job in jobs)
        running = deque(islice(futures, 2 * workers))
        while running:
            running.extend(islice(futures, 1))
            yield running.popleft().result()
