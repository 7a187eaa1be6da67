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
from dataclasses import fields
from functools import partial
from itertools import chain, islice, zip_longest
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from filelock import FileLock
from numpy import ndarray
from rich.console import Console
from rich.filesize import decimal
from rich.progress import DownloadColumn, Progress

from configs.cli import expand_user, print, warn
from configs.errors import DataError, errors_as
from configs.parts import code_of
from data.chat import ChatTemplate, to_messages
from data.disk import atomic_folder
from data.loader import prefetch
from data.readers import rechunk, slice_chunks
from data.sources import Document, Source
from data.store import TRAIN, VALIDATION, Corpus, TokenWriter, write_index
from data.tokenizers.tokenizer import Tokenizer
from data.tokenizers.train import Trainer

FORMAT = 6  # of a corpus in the cache
ORDER = "epochs"  # of pairs; text has its own
LOOKAHEAD = 256  # documents; fewer are few
JOB_BYTES = 1 << 19  # encoded at a time by a thread
MAX_NAMED = 5  # of the documents that are skipped
LARGE = 10**7  # bytes of text, which may take a while


class Chunk(NamedTuple):
    """A part of a document, or all texts of a pair or a conversation."""

    split: str
    texts: Sequence[str]
    is_last: bool  # of its document: an end token follows
    name: Path | str = ""

    def n_bytes(self) -> int:
        return sum(len(text.encode()) for text in self.texts)


def split_chunks(
    source: Source, skipped: list[str], held_out: "HeldOut | None" = None
) -> Iterator[Chunk]:
    """All text of a source, assigned to train or validation. `skipped` gets an item for each
    document that is left out."""
    for split, document in split_documents(source, skipped, held_out or hold_out([source])):
        if source.input_kind != "text":
            yield Chunk(split, list(document.chunks()), True, document.name)
            continue

        last = ""  # one behind
        for text in rechunk(document.chunks()):
            if last:
                yield Chunk(split, [last], is_last=False)
            last = text
        yield Chunk(split, [last], is_last=True)


class HeldOut(NamedTuple):
    """What is for validation, by the hash of each document."""

    shares: dict[float, float]  # of some documents: how much is for training
    fraction: float  # of the others


def hold_out(sources: list[Source]) -> HeldOut:
    """One held-out set for all sources: none trains on what another one validates on. Files of val_path
    come first, then the documents of the smallest source. Of few documents at least one is held out; of
    a single text, its end."""
    shares: dict[float, float] = {}
    fraction = 0.0
    firsts: list[tuple[Source, list[float]]] = []

    for source in sources:
        skipped: list[str] = []
        first = list(islice(hashed_documents(source, skipped), LOOKAHEAD))
        if not first:
            reason = skipped[0] if skipped else "what was found is empty"
            raise DataError(f"there is no text: {reason}")

        parts = source.held_out()
        if not parts:
            fraction = max(fraction, source.val_fraction)
            firsts.append((source, [number for number, _ in first]))
        elif len(sources) > 1:  # alone, a source may validate on what it trains on
            for part in parts:
                shares |= {number: 0.0 for number, _ in hashed_documents(part, [])}

    for source, numbers in sorted(firsts, key=lambda first: len(first[1])):
        undecided = {*numbers} - shares.keys()
        if len(numbers) == LOOKAHEAD or not undecided:
            continue
        shares |= {number: float(number > fraction) for number in undecided}
        if len(numbers) == 1 and source.input_kind == "text":
            shares[numbers[0]] = 1 - fraction
        elif all(shares[number] == 1 for number in numbers):
            shares[min(undecided)] = 0.0

    return HeldOut(shares, fraction)


def split_documents(
    source: Source, skipped: list[str], held_out: HeldOut
) -> Iterator[tuple[str, Document]]:
    """Each document with its split. `skipped` gets an item for each that is left out."""
    parts = source.held_out()
    for number, document in hashed_documents(source, skipped):
        share = held_out.shares.get(number, float(number > held_out.fraction))
        pieces = cut(document, share)
        yield from (piece for piece in pieces if piece[0] == TRAIN or not parts)

    for part in parts:  # and nothing else is for validation
        for _, document in hashed_documents(part, skipped):
            yield VALIDATION, document


def cut(document: Document, share: float) -> Iterator[tuple[str, Document]]:
    if share in (0, 1):
        yield TRAIN if share else VALIDATION, document
        return
    length = sum(map(len, document.chunks()))
    end = int(length * share)
    for split, start, stop in ((TRAIN, 0, end), (VALIDATION, end, length)):
        yield split, Document(document.name, slice_chunks(document.chunks(), start, stop))


def hashed_documents(source: Source, skipped: list[str]) -> Iterator[tuple[float, Document]]:
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


def settings_of(source: Source) -> dict[str, Any]:
    """What its documents depend on besides files: all settings but the default ones."""
    settings: dict[str, Any] = {}
    for field in fields(source):
        value = getattr(source, field.name)
        if value != field.default and field.name != "document_mask":  # which is of batches
            settings[field.name] = value
    return settings | {"cache": None}  # which may be moved


def prepare(
    source: Source, trainer: Trainer, specials: Sequence[str], verify: bool = False
) -> Corpus:
    """The corpus of a source, from the cache or built now."""
    root = expand_user(source.cache)
    root.mkdir(parents=True, exist_ok=True)
    members = getattr(source, "members", [source])  # of a mix

    version = [file for member in members for file in member.version()]
    kinds = [type(part).__name__ for part in (*members, trainer)]
    settings = map(settings_of, members)
    order = [] if source.input_kind == "text" else [ORDER]
    options = json.dumps([kinds, *settings, vars(trainer), specials, *order])
    code = "".join(map(code_of, (*members, trainer)))
    content = json.dumps([FORMAT, version, options + code])
    key = hashlib.sha256(content.encode()).hexdigest()[:16]
    folder = root / f"{type(source).__name__.lower()}-{key}"

    if not folder.exists():
        # other processes wait; the lock is released even by a kill
        with FileLock(folder.with_suffix(".lock")):
            if not folder.exists():
                n_bytes = sum(size for _, size, _ in version)
                with atomic_folder(folder) as draft, progress_bar(n_bytes) as report:
                    tokenize(draft, members, trainer, specials, options, report)

    corpus = Corpus(folder, verify)
    if n := len(corpus.skipped):
        first = "\n  ".join(corpus.skipped[:MAX_NAMED])
        warn(f"{n:,} rows or files were skipped, the first of them:\n  {first}")
    return corpus


@contextmanager
def progress_bar(n_bytes: int) -> Iterator[Callable[[int], object]]:
    """A function of the bytes done so far. It moves a bar on a terminal; a large text, or one of
    unknown size, is announced by a line, too."""
    if not n_bytes or n_bytes >= LARGE:
        text = decimal(n_bytes) if n_bytes else "a text"
        print(f"tokenizing {text} ...", file=sys.stderr)

    columns = *Progress.get_default_columns(), DownloadColumn()
    console = Console(stderr=True)
    hidden = not console.is_terminal
    with Progress(*columns, console=console, transient=True, disable=hidden) as progress:
        task = progress.add_task("tokenizing", total=n_bytes or None)
        yield lambda done: progress.update(task, completed=done)


def tokenize(
    folder: Path,
    sources: list[Source],
    trainer: Trainer,
    specials: Sequence[str],
    options: str,
    report: Callable[[int], object],
) -> None:
    """Train the tokenizer, and write the corpus."""
    skipped: list[str] = []
    held_out = hold_out(sources)
    is_chat = sources[0].input_kind == "chat"

    def texts(include_val: bool) -> Iterator[str]:
        """Of the sources of a mix in turn."""
        if is_chat:
            yield ":\n"  # of the plain template, beside the roles
        turns = zip_longest(*(split_chunks(source, [], held_out) for source in sources))
        for chunk in filter(None, chain.from_iterable(turns)):
            if include_val or chunk.split == TRAIN:
                yield from chunk.texts

    tokenizer = trainer.train(texts, specials)

    template = ChatTemplate(tokenizer, tokenizer.date) if is_chat else None
    to_ids = partial(encode, tokenizer, template)
    workers = min(os.cpu_count() or 1, 16)  # more would wait for the text to be read

    with (
        closing(TokenWriter(folder, TRAIN, tokenizer.vocab_size)) as train,
        closing(TokenWriter(folder, VALIDATION, tokenizer.vocab_size)) as validation,
    ):
        for source in sources:
            limit = train.n_tokens + (getattr(source, "max_tokens", None) or sys.maxsize)
            jobs = batch_chunks(split_chunks(source, skipped, held_out))
            for encoded in prefetch(to_ids, jobs, workers, 2 * workers):
                for chunk, ids in encoded:
                    if train.n_tokens < limit:
                        part = train if chunk.split == TRAIN else validation
                        part.write(ids)
                        part.n_bytes += chunk.n_bytes()
                        part.n_items += chunk.is_last
                report(train.n_bytes + validation.n_bytes)
                if train.n_tokens >= limit:
                    break

            for part in (train, validation):
                part.ends_of_sources.append(part.n_tokens)
                if not part.n_tokens:
                    hint = "change data.val_fraction or data.val_path, or give more texts"
                    raise DataError(f"the {part.split} split is empty; {hint}")

    write_index(folder, options, tokenizer, [train, validation], skipped)


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
            with errors_as(DataError, f"cannot read {chunk.name}"):
                ids = [*template.encode(to_messages(chunk.texts))]
        else:
            ids = [tokenizer.encode(text) for text in chunk.texts]
            if chunk.is_last:
                ids[-1] = np.append(ids[-1], tokenizer.specials["end"])
        encoded.append((chunk, ids))

    return encoded
