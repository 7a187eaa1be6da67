"""Prepares a corpus: tokenizes a source and writes it to the cache."""

import hashlib
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import fields
from functools import partial
from itertools import chain, pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
from filelock import FileLock
from rich.console import Console
from rich.filesize import decimal
from rich.progress import track

from configs.cli import expand_user, print0, warn
from configs.errors import DataError
from configs.parts import LOADED, code_of
from data.chat import ChatTemplate, encode_chat
from data.disk import atomic_folder
from data.loader import prefetch
from data.readers import rechunk
from data.sources import Source
from data.splits import MAX_NAMED, HeldOut, hold_out, skip, split_documents
from data.store import TRAIN, VALIDATION, Corpus, TokenWriter, write_index
from data.tokenizers.tokenizer import Tokenizer
from data.tokenizers.train import Trainer

FORMAT = 7  # of a corpus in the cache
# a part of the hash of pairs: change it when their order changes, so that older runs do not resume
PAIR_ORDER = "epochs"
JOB_BYTES = 1 << 19  # that a thread encodes at a time
LARGE = 10**7  # bytes of text that may take a while


class Chunk(NamedTuple):
    """A part of a document, or all texts of a pair or a conversation."""

    split: str
    texts: Sequence[str]
    is_last: bool  # of its document: an end token follows
    name: Path | str = ""
    label: str | None = None

    def n_bytes(self) -> int:
        return sum(len(text.encode()) for text in self.texts)


def prepare(
    source: Source,
    trainer: Trainer,
    specials: Sequence[str],
    verify: bool = False,
    chosen: HeldOut | None = None,
) -> Corpus:
    """The corpus of a source, from the cache or built now. chosen: what a mix holds out."""
    options = options_of(source, trainer, specials)
    code = code_of(source) + code_of(trainer) if LOADED else ""

    # what is held out, a HeldOut, follows from the rest, unless a mix has chosen it
    content = [source.version(), options + code, *(chosen or ())]

    def build(draft: Path) -> None:
        held_out = chosen or hold_out(source)
        tokenizer = trainer.train(partial(texts_of, source, held_out), specials)
        tokenize(draft, source, tokenizer, held_out, options)

    corpus = Corpus(cached(source, content, build), verify)
    if n := len(corpus.skipped):
        first = "\n  ".join(corpus.skipped[:MAX_NAMED])
        warn(f"{n:,} rows or files were skipped, the first of them:\n  {first}")
    return corpus


def cached(source: Source, content: list, build: Callable[[Path], None]) -> Path:
    """The folder in the cache that is named by this content; build() fills a new one."""
    root = expand_user(source.cache)
    key = hashlib.sha256(json.dumps([FORMAT, *content]).encode()).hexdigest()[:16]
    folder = root / f"{type(source).__name__.lower()}-{key}"

    if not folder.exists():
        # other processes wait; the lock is released even if this one is killed
        with FileLock(folder.with_suffix(".lock")):
            if not folder.exists():
                with atomic_folder(folder) as draft:
                    build(draft)
    return folder


def tokenize(
    folder: Path, source: Source, tokenizer: Tokenizer, held_out: HeldOut, options: str
) -> None:
    """Write the corpus."""
    to_ids = partial(encode, tokenizer)
    if source.input_kind == "chat":  # ids and mask, or an error
        to_ids = partial(encode_chat, ChatTemplate(tokenizer, tokenizer.date))
    workers = min(os.cpu_count() or 1, 16)  # more would wait for the text to be read

    skipped: list[str] = []
    limit = getattr(source, "max_tokens", None) or sys.maxsize
    jobs = batch_chunks(split_chunks(source, skipped, held_out))
    encoded = prefetch(
        lambda job: [(chunk, to_ids(chunk)) for chunk in job], jobs, workers, 2 * workers
    )
    n_bytes = sum(size for _, size, _ in source.version())

    with (
        closing(TokenWriter(folder, TRAIN, tokenizer.vocab_size)) as train,
        closing(TokenWriter(folder, VALIDATION, tokenizer.vocab_size)) as validation,
    ):
        for chunk, ids in chain.from_iterable(with_progress(encoded, n_bytes)):
            if train.n_tokens >= limit:
                break
            if isinstance(ids, DataError):
                skip(source, ids, skipped)
                continue
            part = train if chunk.split == TRAIN else validation
            part.write(ids)
            part.n_bytes += chunk.n_bytes()
            part.n_items += chunk.is_last

    for part in (train, validation):
        if not part.n_tokens:
            raise DataError(
                f"the {part.split} split is empty; change data.val_fraction or data.val_path, or "
                "give more texts (equal ones, and pairs with one source, are in one split)"
            )

    write_index(folder, options, tokenizer, [train, validation], skipped)


def split_chunks(source: Source, skipped: list[str], held_out: HeldOut) -> Iterator[Chunk]:
    """All text of a source, assigned to train or validation. `skipped` gets an item for each
    document that is left out."""
    for split, document in split_documents(source, skipped, held_out):
        if source.input_kind != "text":
            texts = list(document.chunks())
            label = texts.pop() if source.input_kind == "labels" else None
            yield Chunk(split, texts, True, document.name, label)
            continue

        # with the next chunk; "" marks the end, because no chunk is empty
        for text, following in pairwise(chain(rechunk(document.chunks()), [""])):
            yield Chunk(split, [text], is_last=not following)


def batch_chunks(chunks: Iterable[Chunk]) -> Iterator[list[Chunk]]:
    """Lists of chunks that are large enough for a thread."""
    job = []
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


def encode(tokenizer: Tokenizer, chunk: Chunk) -> list:
    """The ids of each text, and the bytes of a label."""
    ids = [tokenizer.encode(text) for text in chunk.texts]
    if chunk.label is not None:
        ids.append(np.frombuffer(chunk.label.encode(), np.uint8))
    elif chunk.is_last:
        ids[-1] = np.append(ids[-1], tokenizer.specials["end"])
    return ids


def texts_of(source: Source, held_out: HeldOut, include_val: bool) -> Iterator[str]:
    """The texts that a tokenizer is trained on."""
    if source.input_kind == "chat":
        yield ":\n"  # in the plain template, beside the roles
    for chunk in split_chunks(source, [], held_out):
        if include_val or chunk.split == TRAIN:
            yield from chunk.texts


def options_of(source: Source, trainer: Trainer, specials: Sequence[str]) -> str:
    """What the tokens of a source depend on besides files and code; of its settings, only those
    that differ from the default."""
    settings = {}

    for field in fields(source):
        value = getattr(source, field.name)
        if value != field.default and field.name != "document_mask":  # which affects only batches
            settings[field.name] = value

    settings["cache"] = None  # the cache may be moved
    kinds = [type(source).__name__, type(trainer).__name__]
    order = [] if source.input_kind == "text" else [PAIR_ORDER]
    return json.dumps([kinds, settings, vars(trainer), specials, *order])


def with_progress(jobs: Iterable, n_bytes: int) -> Iterable:
    """The jobs, with a progress bar on a terminal. A large text, or one of unknown size, is also
    announced by a line."""
    if not n_bytes or n_bytes >= LARGE:
        text = decimal(n_bytes) if n_bytes else "a text"
        print0(f"tokenizing {text} ...", file=sys.stderr)

    console = Console(stderr=True)
    return track(
        jobs,
        "tokenizing",
        n_bytes / JOB_BYTES or None,
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )
