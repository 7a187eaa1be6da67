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

from data.errors import DataError, disk_errors
from data.fingerprint import Fingerprints
from data.split import TRAIN, VALIDATION, items
from data.store import FORMAT, Corpus, PartWriter, write_json

JOB = 1 << 19  # characters that one thread encodes at a time


def prepare(source, vocabulary, specials, *, cache, validation, report=None):
    """The corpus of a source, from the cache or made now. `report` is told (bytes done, bytes in all or
    None) while it is made."""
    if not 0 < validation < 1:
        raise ValueError(f"data.validation is {validation}; expected a share between 0 and 1, such as 0.05")
    cache = Path(cache).expanduser()
    with disk_errors("cannot use"):
        cache.mkdir(parents=True, exist_ok=True)
        fingerprints = Fingerprints(cache / "fingerprints.json")
    held = source.digest(fingerprints)
    identity = [FORMAT, held, described(source), described(vocabulary), specials, validation]
    key = hashlib.sha256(json.dumps(identity).encode()).hexdigest()[:16]
    folder = cache / f"{type(source).__name__.lower()}-{key}"
    if not folder.exists():
        with alone(folder.with_suffix(".lock")):
            if not folder.exists():
                build(folder, source, vocabulary, specials, validation, report)
                if source.digest(Fingerprints(cache / "fingerprints.json")) != held:
                    shutil.rmtree(folder)
                    raise DataError("the text changed while it was read; run again")
    return Corpus(folder, fingerprints)


def described(part):
    return [type(part).__name__, {name: str(value) for name, value in sorted(vars(part).items())}]


@contextmanager
def alone(path):
    """One process at a time; others wait. The lock goes with the process that holds it."""
    with disk_errors("cannot lock"), open(path, "w") as file:
        fcntl.lockf(file, fcntl.LOCK_EX)
        yield


def build(folder, source, vocabulary, specials, share, report):
    """All in a draft, which takes its name when it is complete."""
    draft = folder.with_suffix(".draft")
    with disk_errors("cannot write"):
        shutil.rmtree(draft, ignore_errors=True)  # what a killed build has left
        draft.mkdir()
        try:
            fill(draft, source, vocabulary, specials, share, report)
            os.rename(draft, folder)
        except BaseException:
            shutil.rmtree(draft, ignore_errors=True)
            raise


def fill(draft, source, vocabulary, specials, share, report):
    def texts(whole):
        for item in items(source, share):
            if whole or item.part == TRAIN:
                yield from item.texts

    tokenizer = vocabulary.make(texts, specials)
    dtype = "uint16" if tokenizer.vocab_size <= 1 << 16 else "uint32"
    with (
        PartWriter(draft, TRAIN, dtype, source.reads) as train,
        PartWriter(draft, VALIDATION, dtype, source.reads) as validation,
    ):
        writers = {TRAIN: train, VALIDATION: validation}
        encode_all(source, tokenizer, share, writers, report)
    for part, way_out in ((VALIDATION, "raise"), (TRAIN, "lower")):
        if not writers[part].n_tokens:
            raise DataError(f"no text falls to {part}; {way_out} data.validation, which is {share}")
    write_json(draft / "tokenizer.json", tokenizer.state())
    index = {"format": FORMAT, "reads": source.reads, "dtype": dtype, "vocab_size": tokenizer.vocab_size}
    write_json(draft / "index.json", index | {"parts": {n: w.entry() for n, w in writers.items()}})


def encode_all(source, tokenizer, share, writers, report):
    total, done = source.size(), 0
    for encoded in in_order(lambda job: encode(job, tokenizer), jobs(items(source, share))):
        for part, tokens in encoded.items():
            writers[part].write(*limited(tokens, writers[part], source.max_tokens))
            done += tokens[2]
        if report:
            report(done, total)
        if source.max_tokens is not None and writers[TRAIN].n_tokens >= source.max_tokens:
            return


def limited(tokens, writer, max_tokens):
    ids, lengths, n_bytes, n_items = tokens
    if max_tokens is None or writer.name != TRAIN:
        return tokens
    room = max_tokens - writer.n_tokens
    return ids[:room], lengths, round(n_bytes * min(1, room / len(ids))), n_items


def jobs(stream):
    """Items together, until there are enough for a thread to be worth it."""
    job, size = [], 0
    for item in stream:
        job.append(item)
        size += item.n_bytes
        if size >= JOB:
            yield job
            job, size = [], 0
    if job:
        yield job


def encode(job, tokenizer):
    """{part: (ids, the length of each text, bytes, documents or pairs)}"""
    found = {}
    for item in job:
        ids, lengths, counts = found.setdefault(item.part, ([], [], np.zeros(2, np.int64)))
        for text in item.texts:
            try:
                ids.append(tokenizer.encode(text))
            except ValueError as error:
                raise DataError(f"{item.name}: {error}") from None
            lengths.append(len(ids[-1]))
        if item.last and len(item.texts) == 1:
            ids.append(np.array([tokenizer.specials["end"]]))
        counts += item.n_bytes, item.last
    return {
        part: (np.concatenate(ids), lengths, *counts.tolist())
        for part, (ids, lengths, counts) in found.items()
    }


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
