"""Store: a tokenized corpus on disk, in memory-mapped files and an index."""

import hashlib
import json
import os

import numpy as np

from configs.errors import DataError
from data.tokenizers.tokenizer import tokenizer_from_state

ENTROPY_SAMPLE = 10_000_000  # tokens
MALFORMED = FileNotFoundError, UnicodeDecodeError, json.JSONDecodeError, KeyError, TypeError, AttributeError


class TokenWriter:
    """Writes one split of a corpus: its tokens and, for pairs, the offset where each text ends."""

    def __init__(self, folder, name, dtype, input_kind):
        self.tokens, self.offsets, self.dtype = f"{name}.tokens", f"{name}.bounds", np.dtype(dtype)
        names = [self.tokens, self.offsets] if input_kind == "pairs" else [self.tokens]
        self.files = {name: (folder / name).open("xb") for name in names}
        self.hashes = {name: hashlib.sha256() for name in names}
        self.n_tokens = self.n_bytes = self.n_items = 0

    def write(self, ids, lengths, n_bytes, n_items):
        """The concatenated ids of some texts, and the length of each."""
        if self.offsets in self.files:
            self.append(self.offsets, self.n_tokens + np.cumsum(lengths, dtype=np.int64))
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

    def entry(self):
        """The split in the index."""
        sizes = {name: os.path.getsize(file.name) for name, file in self.files.items()}
        files = {name: {"bytes": n, "sha256": self.hashes[name].hexdigest()} for name, n in sizes.items()}
        return {"tokens": self.n_tokens, "bytes": self.n_bytes, "items": self.n_items, "files": files}


class TokenFile:
    """The tokens of one split: `n_bytes` of text in `n_items` documents or pairs."""

    def __init__(self, folder, name, index):
        entry = index["parts"][name]
        self.path, self.vocab_size = folder / f"{name}.tokens", index["vocab_size"]
        self.n_tokens, self.n_bytes, self.n_items = entry["tokens"], entry["bytes"], entry["items"]
        self.tokens = np.memmap(self.path, index["dtype"], "r")
        if index["input_kind"] == "pairs":  # where each text ends
            self.offsets = np.memmap(folder / f"{name}.bounds", np.int64, "r")

    def windows(self, starts, length):
        """(window, token): `length` tokens from each start."""
        return self.check_ids(self.tokens[np.asarray(starts)[:, None] + np.arange(length)])

    def texts(self, numbers):
        """The tokens of these texts; each pair has two, first its source."""
        starts = np.where(numbers > 0, self.offsets[numbers - 1], 0)
        return [self.check_ids(self.tokens[a:b]) for a, b in zip(starts, self.offsets[numbers], strict=True)]

    def lengths(self):
        """(pair, 2): the tokens of each source and target."""
        return np.diff(self.offsets, prepend=0).reshape(-1, 2)

    def check_ids(self, ids):
        """Ids are checked when they are read, so that no forward pass needs to."""
        if ids.size and (highest := int(ids.max())) >= self.vocab_size:
            raise corrupt_error(self.path, f"holds the id {highest}, beyond its vocab_size {self.vocab_size}")
        return ids.astype(np.int64)


def unigram_entropy(tokens):
    """In nats: the loss of a model that knows the token frequencies and nothing else."""
    counts = np.bincount(tokens[:ENTROPY_SAMPLE])
    p = counts[counts > 0] / counts.sum()
    return float(-(p * np.log(p)).sum())


class Corpus:
    """A verified store: the tokenizer, and the train and validation splits."""

    def __init__(self, folder, hashes):
        try:
            index = json.loads((folder / "index.json").read_text(errors="replace"))
            files = {name: f for entry in index["parts"].values() for name, f in entry["files"].items()}
            for name, expected in (files | {"tokenizer.json": index["tokenizer"]}).items():
                path = folder / name
                size = path.stat().st_size if path.exists() else 0
                if size != expected["bytes"]:
                    raise corrupt_error(path, f"has {size} bytes instead of {expected['bytes']}")
                if hashes.get(path) != expected["sha256"]:
                    raise corrupt_error(path, "is not what was written")
            self.tokenizer = tokenizer_from_state(json.loads((folder / "tokenizer.json").read_text()))
            self.train, self.validation = (TokenFile(folder, name, index) for name in index["parts"])
        except MALFORMED:
            raise corrupt_error(folder / "index.json", "is not a valid index") from None
        self.folder = folder


def corrupt_error(path, what):
    return DataError(f"{path} {what}; remove {path.parent} and run again to rebuild it")
