"""From a source to a tokenized corpus in the cache: tokenize, and write."""

import hashlib
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import fields
from itertools import chain, pairwise, zip_longest
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from filelock import FileLock
from numpy import ndarray
from rich.console import Console
from rich.filesize import decimal
from rich.progress import track

from configs.cli import expand_user, print, warn
from configs.errors import DataError, errors_as
from configs.parts import code_of
from data.chat import ChatTemplate, to_messages
from data.disk import atomic_folder
from data.loader import LOADERS, Loaders, prefetch
from data.readers import rechunk
from data.sources import Source
from data.splits import MAX_NAMED, HeldOut, hold_out, split_documents
from data.store import TRAIN, VALIDATION, Corpus, TokenWriter, write_index
from data.tokenizers.tokenizer import Tokenizer
from data.tokenizers.train import Trainer

FORMAT = 6  # of a corpus in the cache
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


Job = list[
    tuple[Chunk, list[ndarray]]
]  # with the ids of each text; of a conversation its ids and mask


def split_chunks(source: Source, skipped: list[str], held_out: HeldOut) -> Iterator[Chunk]:
    """All text of a source, assigned to train or validation. `skipped` gets an item for each
    document that is left out."""
    for split, document in split_documents(source, skipped, held_out):
        if source.input_kind != "text":
            yield Chunk(split, list(document.chunks()), True, document.name)
            continue

        for text, following in pairwise(chain(rechunk(document.chunks()), [None])):
            yield Chunk(split, [str(text)], is_last=following is None)


def settings_of(source: Source) -> dict[str, Any]:
    """What its documents depend on besides files: all settings but the default ones."""
    defaults = {field.name: field.default for field in fields(source)} | {"weight": source.weight}
    values = {name: getattr(source, name) for name in defaults}
    settings = {name: value for name, value in values.items() if value != defaults[name]}
    return settings | {"cache": None}  # which may be moved


def cache_folder(
    name: str, sources: list[Source], trainer: Trainer, *extra: Any
) -> tuple[Path, str, int]:
    """Where what follows from these is cached, all of their settings, and the bytes of the files."""
    root = expand_user(sources[0].cache)
    root.mkdir(parents=True, exist_ok=True)
    version = [file for source in sources for file in source.version()]
    parts = [*sources, trainer]
    kinds = [type(part).__name__ for part in parts]
    options = json.dumps([kinds, *map(settings_of, sources), vars(trainer), *extra])
    content = json.dumps([FORMAT, version, options + "".join(map(code_of, parts))])
    key = hashlib.sha256(content.encode()).hexdigest()[:16]
    return root / f"{name}-{key}", options, sum(size for _, size, _ in version)


def build_once(folder: Path, build: Callable[[Path], None]) -> None:
    """Other processes wait; the lock is released even by a kill."""
    if folder.exists():
        return
    with FileLock(folder.with_suffix(".lock")):
        if not folder.exists():
            with atomic_folder(folder) as draft:
                build(draft)


def prepare(
    source: Source,
    trainer: Trainer,
    specials: Sequence[str],
    held_out: HeldOut | None = None,
    verify: bool = False,
) -> Corpus:
    """The corpus of a source, from the cache or built now. verify: all of its bytes are compared with
    those that were written, not only a sample."""
    extra = [specials, held_out] if held_out else [specials]
    name = type(source).__name__.lower()
    folder, options, n_bytes = cache_folder(name, [source], trainer, *extra)

    def build(draft: Path) -> None:
        decided = held_out or hold_out([source])
        tokenizer = train_tokenizer([source], decided, trainer, specials)
        skipped: list[str] = []
        jobs = batch_chunks(split_chunks(source, skipped, decided))
        encoded = encode_all(jobs, tokenizer, source.input_kind == "chat")
        limit = source.most_tokens()
        with (
            closing(TokenWriter(draft, TRAIN, tokenizer.vocab_size)) as train,
            closing(TokenWriter(draft, VALIDATION, tokenizer.vocab_size)) as validation,
        ):
            for job in with_progress(encoded, n_bytes):
                for chunk, ids in job:
                    if train.n_tokens < limit:
                        part = train if chunk.split == TRAIN else validation
                        part.write(ids, chunk.n_bytes(), chunk.is_last)
                if train.n_tokens >= limit:
                    break
        write_index(draft, options, tokenizer, [train, validation], skipped)

    build_once(folder, build)
    corpus = Corpus(folder, verify)
    if n := len(corpus.skipped):
        first = "\n  ".join(corpus.skipped[:MAX_NAMED])
        warn(f"{n:,} rows or files were skipped, the first of them:\n  {first}")
    return corpus


def with_progress(jobs: Iterable[Job], n_bytes: int) -> Iterable[Job]:
    """The jobs, with a bar on a terminal. A large text, or one of unknown size, is announced by a
    line, too."""
    if not n_bytes or n_bytes >= LARGE:
        text = decimal(n_bytes) if n_bytes else "a text"
        print(f"tokenizing {text} ...", file=sys.stderr)
    console = Console(stderr=True)
    options: Any = {"console": console, "transient": True, "disable": not console.is_terminal}
    return track(jobs, "tokenizing", n_bytes / JOB_BYTES or None, **options)


def train_tokenizer(
    sources: list[Source], held_out: HeldOut, trainer: Trainer, specials: Sequence[str]
) -> Tokenizer:
    """On the texts of all sources in turn."""

    def texts(include_val: bool) -> Iterator[str]:
        if sources[0].input_kind == "chat":
            yield ":\n"  # of the plain template, beside the roles
        parts = [split_chunks(source, [], held_out) for source in sources]
        for chunk in chain.from_iterable(zip_longest(*parts)):
            if chunk and (include_val or chunk.split == TRAIN):
                yield from chunk.texts

    return trainer.train(texts, specials)


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

    yield job


def encode_all(jobs: Iterator[list[Chunk]], tokenizer: Tokenizer, is_chat: bool) -> Iterator[Job]:
    template = ChatTemplate(tokenizer, tokenizer.date) if is_chat else None

    def encode(chunk: Chunk) -> list[ndarray]:
        if template:
            with errors_as(DataError, f"cannot read {chunk.name}"):
                return [*template.encode(to_messages(chunk.texts))]
        ids = [tokenizer.encode(text) for text in chunk.texts]
        if chunk.is_last:
            ids[-1] = np.append(ids[-1], tokenizer.specials["end"])
        return ids

    workers = min(os.cpu_count() or 1, 16)  # more would wait for the text to be read
    return prefetch(lambda job: [(c, encode(c)) for c in job], jobs, workers, 2 * workers)


def load_source(
    source: Source,
    trainer: Trainer,
    verify: bool,
    held_out: HeldOut | None = None,
    **shared: Any,
) -> Loaders:
    """shared: what each loader takes."""
    objective = shared["objective"]
    corpus = prepare(source, trainer, objective.specials, held_out, verify)
    shared["tokenizer"] = corpus.tokenizer
    kind = LOADERS[objective.input_kind]
    train, validation = [kind(part=part, **shared) for part in (corpus.train, corpus.validation)]
    content = corpus.content_hash
    return Loaders(objective, content, corpus.folder, corpus.tokenizer, train, validation)
