"""Store: a tokenized corpus on disk, in memory-mapped files and an index."""

import hashlib
import json
import os
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Annotated

import numpy as np

from configs.errors import DataError
from configs.registry import Bounds, from_dict
from data.disk import read_json_or_none, write_synced
from data.tokenizers.tokenizer import tokenizer_from_state

SPLITS = "train", "validation"
ENTROPY_SAMPLE = 10_000_000  # tokens


def token_dtype(vocab_size):
    return np.dtype(np.uint16 if vocab_size <= 1 << 16 else np.uint32)


def file_names(split, input_kind):
    """The tokens and, for pairs, the offset where each text ends."""
    return [f"{split}.tokens", f"{split}.bounds"] if input_kind == "pairs" else [f"{split}.tokens"]


class TokenWriter:
    """Writes one split of a corpus."""

    def __init__(self, folder, split, vocab_size, input_kind):
        self.dtype, names = token_dtype(vocab_size), file_names(split, input_kind)
        self.tokens, self.offsets = names[0], names[1:]
        self.files = {name: (folder / name).open("xb") for name in names}
        self.hashes = {name: hashlib.sha256() for name in names}
        self.n_tokens = self.n_bytes = self.n_items = 0

    def write(self, ids, lengths, n_bytes, n_items):
        """The concatenated ids of some texts, and the length of each."""
        for name in self.offsets:
            self.append(name, self.n_tokens + np.cumsum(lengths, dtype=np.int64))
        self.append(self.tokens, ids.astype(self.dtype))
        self.n_tokens += len(ids)
        self.n_bytes += n_bytes
        self.n_items += n_items

    def append(self, name, array):
        data = array.tobytes()
        self.files[name].write(data)
        self.hashes[name].update(data)

    def __enter__(self):
        return self

    def __exit__(self, failure, *traceback):
        for file in self.files.values():
            with file:
                if not failure:
                    file.flush()
                    os.fsync(file.fileno())

    def checksums(self):
        """{name: {bytes, sha256}} of its files"""
        sizes = {name: os.path.getsize(file.name) for name, file in self.files.items()}
        return {
            name: {"bytes": n, "sha256": self.hashes[name].hexdigest()} for name, n in sizes.items()
        }


class TokenFile:
    """The tokens of one split: `n_bytes` of text in `n_items` documents or pairs."""

    def __init__(self, paths, vocab_size, n_bytes, n_items):
        self.path = paths[0]
        self.vocab_size, self.n_bytes, self.n_items = vocab_size, n_bytes, n_items
        self.tokens = np.memmap(self.path, token_dtype(vocab_size), "r")
        self.n_tokens = len(self.tokens)
        if paths[1:]:  # where each text ends
            self.offsets = np.memmap(paths[1], np.int64, "r")

    def windows(self, starts, length):
        """(window, token): `length` tokens from each start."""
        return self.check_ids(self.tokens[np.asarray(starts)[:, None] + np.arange(length)])

    def texts(self, numbers):
        """The tokens of these texts; each pair has two, first its source."""
        starts = np.where(numbers > 0, self.offsets[numbers - 1], 0)
        return [
            self.check_ids(self.tokens[a:b])
            for a, b in zip(starts, self.offsets[numbers], strict=True)
        ]

    def lengths(self):
        """(pair, 2): the tokens of each source and target."""
        return np.diff(self.offsets, prepend=0).reshape(-1, 2)

    def check_ids(self, ids):
        """Ids are checked when they are read, so that no forward pass needs to."""
        if ids.size and (highest := int(ids.max())) >= self.vocab_size:
            raise corrupt_error(
                self.path, f"holds the id {highest}, beyond its vocab_size {self.vocab_size}"
            )
        return ids.astype(np.int64)

    @cached_property
    def unigram_entropy(self):
        """In nats: the loss of a model that knows the token frequencies and nothing else."""
        counts = np.bincount(self.tokens[:ENTROPY_SAMPLE])
        p = counts[counts > 0] / counts.sum()
        return float(-(p * np.log(p)).sum())


def write_index(path, input_kind, tokenizer, writers):
    """What the files are, and a hash of that."""
    index = {"input_kind": input_kind, "files": {"tokenizer.json": tokenizer}}
    for split, writer in writers.items():
        index[split] = {"n_bytes": writer.n_bytes, "n_items": writer.n_items}
        index["files"] |= writer.checksums()
    write_synced(path, [json.dumps(index | {"sha256": index_hash(index)}).encode()])


@dataclass
class Size:
    n_bytes: Annotated[int, Bounds(least=1)]
    n_items: Annotated[int, Bounds(least=0)]


@dataclass
class Index:
    input_kind: Annotated[str, ("text", "pairs")]
    files: dict[str, dict[str, int | str]]
    train: Size
    validation: Size


def read_index(path):
    index = read_json_or_none(path)
    if not isinstance(index, dict) or index.pop("sha256", None) != index_hash(index):
        raise corrupt_error(path, "is not a valid index")
    try:
        return from_dict(Index, index)
    except ValueError as error:
        raise corrupt_error(path, f"is not a valid index ({error})") from None


def index_hash(index):
    return hashlib.sha256(json.dumps(index, sort_keys=True).encode()).hexdigest()


class Corpus:
    """A verified store: the tokenizer, and the train and validation splits."""

    def __init__(self, folder, hashes, input_kind=None):
        self.folder, index = folder, read_index(folder / "index.json")
        names = {split: file_names(split, input_kind or index.input_kind) for split in SPLITS}
        for name in ("tokenizer.json", *chain(*names.values())):
            path, expected = folder / name, index.files.get(name, {})
            size = path.stat().st_size if path.is_file() else 0
            if not size or size != expected.get("bytes"):
                raise corrupt_error(path, f"has {size} bytes instead of {expected.get('bytes')}")
            if hashes.get(path) != expected.get("sha256"):
                raise corrupt_error(path, "is not what was written")
        self.tokenizer = tokenizer_from_state(json.loads((folder / "tokenizer.json").read_text()))
        self.train, self.validation = (
            TokenFile(
                [folder / name for name in names[split]], self.tokenizer.vocab_size, **vars(sizes)
            )
            for split, sizes in zip(SPLITS, (index.train, index.validation), strict=True)
        )


def corrupt_error(path, what):
    return DataError(f"{path} {what}; remove {path.parent} and run again to rebuild it")
