"""Preparation: text becomes tokens on disk, once for each corpus, tokenizer and set of options."""

import fcntl
import hashlib
import json
import os
import shutil
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from data.disk import sync
from data.documents import PIECE
from data.errors import DataError, disk_errors
from data.fingerprint import Fingerprints
from data.split import TRAIN, VALIDATION, portions
from data.store import FORMAT, Corpus, Encoded, PartWriter, described_file, write_json

JOB = 1 << 19  # characters that one thread encodes at a time


def prepare(source, vocabulary, specials, *, cache, validation, report=None):
    """The corpus of a source, from the cache or made now. `report` is told (bytes done, bytes in all or
    None) while it is made."""
    if type(validation) not in (int, float) or not 0 < validation < 1:
        raise ValueError(f"data.validation is {validation!r}; expected a share between 0 and 1, such as 0.05")
    cache = Path(cache).expanduser()
    with disk_errors("cannot use"):
        cache.mkdir(parents=True, exist_ok=True)
        fingerprints = Fingerprints(cache / "fingerprints.json")
    options = [described(source), described(vocabulary), specials, validation]
    stamp, held = source.stamp(), source.digest(fingerprints)
    key = hashlib.sha256(json.dumps([FORMAT, held, *options]).encode()).hexdigest()[:16]
    folder = cache / f"{type(source).__name__.lower()}-{key}"
    if not folder.exists():
        with alone(folder.with_suffix(".lock")):
            if not folder.exists():
                with built(folder) as draft:
                    fill(draft, source, vocabulary, specials, validation, report)
                    if source.stamp() != stamp:
                        raise DataError("the text changed while it was read; run again")
    return Corpus(folder, fingerprints)


def described(part):
    """Its kind and options, but for where things are kept."""
    options = {name: str(value) for name, value in sorted(vars(part).items()) if name != "cache"}
    return [type(part).__name__, options]


@contextmanager
def alone(path):
    """One process at a time; others wait. The lock goes with the process that holds it."""
    with disk_errors("cannot lock"), open(path, "w") as file:
        fcntl.lockf(file, fcntl.LOCK_EX)
        yield


@contextmanager
def built(folder):
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


def fill(draft, source, vocabulary, specials, share, report):
    def texts(whole):
        left = float("inf") if source.max_tokens is None else source.max_tokens + JOB + 2 * PIECE
        for portion in portions(source, share):
            if whole or portion.part == TRAIN:
                yield from portion.texts
            if portion.part == TRAIN:
                left -= sum(map(len, portion.texts))
            if left < 0:  # a token is a character at the least
                return

    tokenizer = vocabulary.make(texts, specials)
    dtype = "uint16" if tokenizer.vocab_size <= 1 << 16 else "uint32"
    with (
        PartWriter(draft, TRAIN, dtype, source.reads) as train,
        PartWriter(draft, VALIDATION, dtype, source.reads) as validation,
    ):
        writers = {TRAIN: train, VALIDATION: validation}
        encode_all(source, tokenizer, share, writers, report)
    for part, way_out in ((VALIDATION, "raise it"), (TRAIN, "lower it, or give texts that differ")):
        if not writers[part].n_tokens:
            raise DataError(f"no text falls to {part} where data.validation is {share}; {way_out}")
    write_json(draft / "tokenizer.json", tokenizer.state())
    index = {"format": FORMAT, "reads": source.reads, "dtype": dtype, "vocab_size": tokenizer.vocab_size}
    index |= {"tokenizer": described_file(draft / "tokenizer.json")}
    write_json(draft / "index.json", index | {"parts": {n: w.entry() for n, w in writers.items()}})


def encode_all(source, tokenizer, share, writers, report):
    total, done = source.n_bytes(), 0
    for parts in in_order(lambda job: encode(job, tokenizer), jobs(portions(source, share))):
        for part, encoded in parts.items():
            if source.max_tokens is not None and part == TRAIN:
                encoded = encoded.first(source.max_tokens - writers[TRAIN].n_tokens)
            writers[part].write(encoded)
            done += encoded.n_bytes
        if report:
            report(done, total)
        if source.max_tokens is not None and writers[TRAIN].n_tokens >= source.max_tokens:
            return


def jobs(stream):
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


def encode_part(portions, tokenizer):
    end, ids, lengths = np.array([tokenizer.specials["end"]]), [], []
    for portion in portions:
        for text in portion.texts:
            try:
                ids.append(tokenizer.encode(text))
            except ValueError as error:
                raise DataError(f"{portion.name}: {error}") from None
            lengths.append(len(ids[-1]))
        if portion.end:
            ids.append(end)
    n_bytes, n_items = sum(p.n_bytes for p in portions), sum(p.last for p in portions)
    return Encoded(np.concatenate(ids), lengths, n_bytes, n_items)


def in_order(function, jobs):
    """map(function, jobs) on every core, with few jobs in flight. tiktoken lets go of the interpreter while
    it encodes, so threads do what processes would, without copies of the text."""
    workers = os.cpu_count() or 1
    with ThreadPoolExecutor(workers) as pool:
        running = deque()
        try:
            for job in jobs:
                running.append(pool.submit(function, job))
                if len(running) > 2 * workers:
                    yield running.popleft().result()
            while running:
                yield running.popleft().result()
        finally:
            for future in running:
                future.cancel()
