"""From a source to a tokenized corpus in the cache: split it, tokenize, write.

A document is assigned to a split by a hash of how it begins, so neither other documents nor its
position matter, and equal documents stay together.
"""

import hashlib
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import NamedTuple

import numpy as np
from filelock import FileLock
from numpy import ndarray
from rich.console import Console
from rich.filesize import decimal
from rich.progress import DownloadColumn, Progress

from configs.cli import expand_user, print
from configs.errors import DataError
from configs.parts import code_of
from data.chat import ChatTemplate, to_messages
from data.disk import atomic_folder
from data.loader import map_ahead
from data.readers import reader_errors, rechunk, slice_chunks
from data.sources import Document, Source
from data.store import TRAIN, VALIDATION, Corpus, TokenWriter, write_index
from data.tokenizers.tokenizer import Tokenizer
from data.tokenizers.train import Trainer

FORMAT = 4  # of a corpus in the cache
LOOKAHEAD = 256  # documents; of fewer, at least one goes to validation
JOB_BYTES = 1 << 19  # encoded at a time by a thread
LARGE = 10**7  # bytes of text, which may take a while


class Chunk(NamedTuple):
    """A part of a document, or all texts of a pair or a conversation."""

    split: str
    texts: Sequence[str]
    is_last: bool  # of its document: an end token follows
    name: Path | str = ""

    def n_bytes(self) -> int:
        return sum(len(text.encode()) for text in self.texts)


def split_chunks(source: Source) -> Iterator[Chunk]:
    """All text of a source, assigned to train or validation."""
    for split, document in split_documents(source):
        if source.input_kind != "text":
            yield Chunk(split, list(document.chunks()), True, document.name)
            continue
        last = ""
        for text in rechunk(document.chunks()):
            if last:
                yield Chunk(split, [last], is_last=False)
            last = text
        yield Chunk(split, [last], is_last=True)


def split_documents(source: Source) -> Iterator[tuple[str, Document]]:
    """Each document with its split. A single one is cut: its end is for validation."""
    hashed = hashed_documents(source)
    first = list(islice(hashed, LOOKAHEAD))
    if not first:
        raise DataError("there is no text: what was found is empty")

    if len(first) == 1 and source.input_kind == "text":
        [(_, document)] = first
        length = sum(map(len, document.chunks()))
        cut = int(length * (1 - source.val_fraction))
        for split, start, stop in ((TRAIN, 0, cut), (VALIDATION, cut, length)):
            yield split, Document(document.name, slice_chunks(document.chunks(), start, stop))
        return

    highest = source.val_fraction
    if len(first) < LOOKAHEAD:  # at least one is for validation
        highest = max(highest, min(number for number, _ in first))
    for number, document in chain(first, hashed):
        yield VALIDATION if number <= highest else TRAIN, document


def hashed_documents(source: Source) -> Iterator[tuple[float, Document]]:
    """(a hash of its first chunk, from 0 to 1; document) for each that is not empty. Of a pair, its
    source is the first; of a conversation, whose first may be that of many, all count."""
    for document in source.documents():
        if source.input_kind == "pairs" and not all(map(str.strip, document.chunks())):
            raise DataError(f"{document.name}: the source or the target is empty")
        n_hashed = None if source.input_kind == "chat" else 1
        if begin := "".join(islice(document.chunks(), n_hashed)):
            digest = hashlib.blake2b(begin.encode(), digest_size=8).digest()
            yield int.from_bytes(digest) / 2**64, document


def prepare(source: Source, trainer: Trainer, specials: Sequence[str]) -> Corpus:
    """The corpus of a source, from the cache or built now."""
    root = expand_user(source.cache)
    root.mkdir(parents=True, exist_ok=True)
    version = source.version()
    kinds = [type(source).__name__, type(trainer).__name__]
    settings = asdict(source) | {"cache": None}  # which may be moved
    options = json.dumps([kinds, settings, vars(trainer), specials])
    code = code_of(source) + code_of(trainer)
    key = hashlib.sha256(json.dumps([FORMAT, version, options + code]).encode()).hexdigest()
    folder = root / f"{kinds[0].lower()}-{key[:16]}"

    if not folder.exists():
        # other processes wait; the lock is released even by a kill
        with FileLock(folder.with_suffix(".lock")):
            if not folder.exists():
                total = sum(size for _, size, _ in version) or None
                with atomic_folder(folder) as draft, progress_bar(total) as report:
                    made = tokenize(draft, source, trainer, specials, report)
                    write_index(draft, options, *made)

    return Corpus(folder)


@contextmanager
def progress_bar(total: int | None) -> Iterator[Callable[[int], object]]:
    """A function of the bytes done so far. It moves a bar on a terminal; a large text, or one of
    unknown size, is announced by a line, too."""
    if total is None or total >= LARGE:
        print(f"tokenizing {decimal(total) if total else 'a text'} ...", file=sys.stderr)

    columns = *Progress.get_default_columns(), DownloadColumn()
    console = Console(stderr=True)
    is_hidden = not console.is_terminal
    with Progress(*columns, console=console, transient=True, disable=is_hidden) as progress:
        task = progress.add_task("tokenizing", total=total)
        yield lambda n_bytes: progress.update(task, completed=n_bytes)


def tokenize(
    folder: Path,
    source: Source,
    trainer: Trainer,
    specials: Sequence[str],
    report: Callable[[int], object],
) -> tuple[Tokenizer, list[TokenWriter]]:
    """Train the tokenizer, and write the tokens of both splits."""

    def texts(include_val: bool) -> Iterator[str]:
        for chunk in split_chunks(source):
            if include_val or chunk.split == TRAIN:
                yield from chunk.texts

    tokenizer = trainer.train(texts, specials)
    limit = getattr(source, "max_tokens", None) or sys.maxsize
    jobs = batch_chunks(split_chunks(source))
    workers = min(os.cpu_count() or 1, 16)  # more would wait for the text to be read
    template = ChatTemplate(tokenizer) if source.input_kind == "chat" else None
    to_ids = partial(encode, tokenizer, template)

    with (
        closing(TokenWriter(folder, TRAIN, tokenizer.vocab_size)) as train,
        closing(TokenWriter(folder, VALIDATION, tokenizer.vocab_size)) as validation,
    ):
        for encoded in map_ahead(to_ids, jobs, workers, 2 * workers):
            for chunk, texts_ids in encoded:
                if train.n_tokens >= limit:
                    break
                part = train if chunk.split == TRAIN else validation
                part.write(texts_ids)
                part.n_bytes += chunk.n_bytes()
                part.n_items += chunk.is_last
            report(train.n_bytes + validation.n_bytes)
            if train.n_tokens >= limit:
                break

    for part in (train, validation):
        if not part.n_tokens:
            reason = f"the {part.split} split is empty with data.val_fraction={source.val_fraction}"
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


def encode(
    tokenizer: Tokenizer, template: ChatTemplate | None, job: list[Chunk]
) -> list[tuple[Chunk, list[ndarray]]]:
    """(chunk, the ids of each of its texts; of a conversation its ids and their mask)"""
    encoded = []

    for chunk in job:
        if template:
            with reader_errors(chunk.name):
                ids = [*template.encode(to_messages(chunk.texts))]
        else:
            ids = [tokenizer.encode(text) for text in chunk.texts]
            if chunk.is_last:
                ids[-1] = np.append(ids[-1], tokenizer.specials["end"])
        encoded.append((chunk, ids))

    return encoded
