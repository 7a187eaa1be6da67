"""Store: a corpus as tokens on disk, in files that are mapped into memory; an index says what they hold."""

import hashlib
import json
import os
from typing import NamedTuple

import numpy as np

from configs.errors import DataError
from data.disk import write_synced
from data.files import digest
from data.tokenizers.tokenizer import tokenizer_from_state

FORMAT = 1
COUNTED = 10_000_000  # tokens from which an entropy is taken


class EncodedChunk(NamedTuple):
    """The ids of some texts, one after another, the length of each, and what they were."""

    ids: np.ndarray
    lengths: list[int]
    n_bytes: int
    n_items: int

    def first(self, n):
        """No more than n tokens of it."""
        share = min(1, n / len(self.ids))
        return self._replace(ids=self.ids[:n], n_bytes=round(self.n_bytes * share))


class TokenWriter:
    """One part of a corpus while it is written. Of pairs, `bounds` says where each text ends."""

    def __init__(self, folder, name, dtype, reads):
        self.name, self.dtype = name, np.dtype(dtype)
        names = [f"{name}.tokens", f"{name}.bounds"] if reads == "pairs" else [f"{name}.tokens"]
        self.files = {file: (folder / file).open("xb") for file in names}
        self.hashes = {file: hashlib.sha256() for file in names}
        self.sizes = dict.fromkeys(names, 0)
        self.n_tokens = self.n_bytes = self.n_items = 0

    def write(self, encoded):
        if f"{self.name}.bounds" in self.files:
            bounds = self.n_tokens + np.cumsum(encoded.lengths, dtype=np.int64)
            self.append(f"{self.name}.bounds", bounds)
        self.append(f"{self.name}.tokens", encoded.ids.astype(self.dtype))
        self.n_tokens += len(encoded.ids)
        self.n_bytes += encoded.n_bytes
        self.n_items += encoded.n_items

    def append(self, file, array):
        data = array.tobytes()
        self.files[file].write(data)
        self.hashes[file].update(data)
        self.sizes[file] += len(data)

    def __enter__(self):
        return self

    def __exit__(self, failure, *traceback):
        for file in self.files.values():
            with file:
                if not failure:
                    file.flush()
                    os.fsync(file.fileno())

    def entry(self):
        files = {n: {"bytes": self.sizes[n], "sha256": self.hashes[n].hexdigest()} for n in self.files}
        return {"tokens": self.n_tokens, "bytes": self.n_bytes, "items": self.n_items, "files": files}


def write_json(path, content):
    write_synced(path, [json.dumps(content).encode()])


class TokenFile:
    """The tokens of training, or those of validation. `n_bytes` of text became `n_tokens`; there are
    `n_items` documents, or pairs."""

    def __init__(self, folder, name, index):
        entry = index["parts"][name]
        self.path, self.vocab_size = folder / f"{name}.tokens", index["vocab_size"]
        self.n_tokens, self.n_bytes, self.n_items = entry["tokens"], entry["bytes"], entry["items"]
        self.tokens = np.memmap(self.path, index["dtype"], "r")
        self.bounds = None
        if index["input_kind"] == "pairs":
            self.bounds = np.memmap(folder / f"{name}.bounds", np.int64, "r")

    def windows(self, starts, length):
        """(window, token): so many tokens from each start."""
        return self.checked(self.tokens[np.asarray(starts)[:, None] + np.arange(length)])

    def texts(self, numbers):
        """The tokens of these texts; a pair has two, its source before its target."""
        begins = np.where(numbers > 0, self.bounds[numbers - 1], 0)
        return [self.checked(self.tokens[a:b]) for a, b in zip(begins, self.bounds[numbers], strict=True)]

    def lengths(self):
        """(pair, 2): the tokens of each source and target."""
        return np.diff(self.bounds, prepend=0).reshape(-1, 2)

    def checked(self, ids):
        """Ids are looked at here, where they enter, so that no forward pass need do it."""
        if ids.size and (highest := int(ids.max())) >= self.vocab_size:
            raise DataError(
                f"{self.path} holds the id {highest}, beyond its vocabulary of {self.vocab_size}; "
                f"remove {self.path.parent} and run again"
            )
        return ids.astype(np.int64)


def unigram_entropy(tokens):
    """Of single tokens, in nats: what a model comes to that knows how often each occurs and nothing else."""
    counts = np.bincount(tokens[:COUNTED])
    shares = counts[counts > 0] / counts.sum()
    return float(-(shares * np.log(shares)).sum())


class Corpus:
    """An opened store: its tokenizer, and the parts for training and for validation."""

    def __init__(self, folder, fingerprints):
        index = read_json(folder / "index.json")
        try:
            for entry in index["parts"].values():
                for name, file in entry["files"].items():
                    check_file(folder / name, file, fingerprints)
            check_file(folder / "tokenizer.json", index["tokenizer"], fingerprints)
            self.tokenizer = tokenizer_from_state(read_json(folder / "tokenizer.json"))
            self.train, self.validation = (TokenFile(folder, name, index) for name in index["parts"])
        except (KeyError, TypeError, AttributeError):
            raise DataError(corrupt_error(folder / "index.json", "is no index")) from None
        self.folder = folder


def read_json(path):
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(corrupt_error(path, f"cannot be read ({error})")) from None


def described_file(path):
    return {"bytes": path.stat().st_size, "sha256": digest(path)}


def check_file(path, expected, fingerprints):
    size = path.stat().st_size if path.exists() else 0
    if size != expected["bytes"]:
        raise DataError(corrupt_error(path, f"has {size} bytes where {expected['bytes']} were written"))
    if fingerprints.of(path) != expected["sha256"]:
        raise DataError(corrupt_error(path, "is not what was written"))


def corrupt_error(path, what):
    return f"{path} {what}; remove {path.parent} and run again, it is made anew"
