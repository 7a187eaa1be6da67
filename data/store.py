"""Store: a tokenized corpus, as a folder of memory-mapped files and an index."""

import hashlib
import json
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy import ndarray

from configs.errors import DataError, errors_as
from data.disk import sync_and_hash, write_synced
from data.tokenizers.tokenizer import Tokenizer, tokenizer_from_state

TRAIN = "train"
VALIDATION = "validation"
BLOCK = 1 << 18  # bytes per checksum
SAMPLED = 64  # blocks of a file, at least, that are verified at each start


def token_dtype(vocab_size: int) -> type[np.unsignedinteger]:
    return np.uint16 if vocab_size <= 1 << 16 else np.uint32


class TokenWriter:
    """Writes one split of a corpus: its tokens, and where each text (or chunk of one) ends."""

    def __init__(self, folder: Path, split: str, vocab_size: int):
        self.split = split
        self.dtype = token_dtype(vocab_size)
        self.tokens = (folder / f"{split}.tokens").open("xb")
        self.ends = (folder / f"{split}.ends").open("xb")
        self.n_tokens = 0
        self.n_bytes = 0
        self.n_items = 0

    def write(self, texts: list[ndarray]) -> None:
        """Write the ids of each text."""
        for ids in texts:
            self.tokens.write(ids.astype(self.dtype).tobytes())
            self.n_tokens += len(ids)
            self.ends.write(np.int64(self.n_tokens).tobytes())

    def close(self) -> None:
        self.tokens.close()
        self.ends.close()


def checksums(path: Path, every: int = 1) -> list[int]:
    """CRC-32 of the blocks of a file, or of every n-th block."""
    sums = []

    with path.open("rb") as file:
        for start in range(0, path.stat().st_size, every * BLOCK):
            file.seek(start)
            sums.append(zlib.crc32(file.read(BLOCK)))
    return sums


def write_index(
    folder: Path, options: str, tokenizer: Tokenizer, parts: list[TokenWriter], skipped: list[str]
) -> None:
    """Sync what was written, and add an index: counts, the tokenizer and a hash of it all."""
    state = tokenizer.state()
    content = hashlib.sha256(json.dumps([options, state]).encode())
    sums = {}

    for path in sorted(folder.iterdir()):
        content.update(sync_and_hash(path).encode())
        sums[path.name] = checksums(path)

    index = {"content": content.hexdigest(), "tokenizer": state, "skipped": skipped, "sums": sums}
    for part in parts:
        index[part.split] = {"n_bytes": part.n_bytes, "n_items": part.n_items}
    write_synced(folder / "index.json", json.dumps(index))


@dataclass
class TokenFile:
    """The tokens of one split: n_bytes of text in n_items documents or pairs."""

    folder: Path
    split: str
    vocab_size: int
    n_bytes: int
    n_items: int

    def __post_init__(self) -> None:
        path = self.folder / f"{self.split}.tokens"
        self.tokens = np.memmap(path, token_dtype(self.vocab_size), "r")
        self.ends = np.memmap(path.with_suffix(".ends"), np.int64, "r")
        self.n_tokens = len(self.tokens)
        if self.ends[-1] != self.n_tokens:
            raise ValueError(f"{path.name} has {self.n_tokens} tokens, not {self.ends[-1]}")

    @property
    def parts(self) -> "list[TokenFile]":
        return [self]  # those of a mix are the files of its sources

    def ids(self, start: int, length: int) -> ndarray:
        return self.tokens[start : start + length].astype(np.int64)

    def pairs(self) -> tuple[ndarray, ndarray]:
        """Where the source and the target of each pair start, and their lengths; each (pair, 2)."""
        lengths = np.diff(self.ends, prepend=0)
        starts = self.ends - lengths
        return starts.reshape(-1, 2), lengths.reshape(-1, 2)


class Corpus:
    """The tokenizer, and the train and validation splits."""

    def __init__(self, folder: Path, verify: bool):
        """verify: check that all bytes are as they were written, not only a sample of them."""
        with errors_as(DataError, f"{folder} is damaged; remove it and run again to rebuild it"):
            index = json.loads((folder / "index.json").read_text())
            self.tokenizer = tokenizer_from_state(index["tokenizer"])
            self.content_hash = index["content"]
            self.skipped = index["skipped"]

            for name, sums in index["sums"].items():
                every = 1 if verify else max(1, len(sums) // SAMPLED)
                if checksums(folder / name, every) != sums[::every]:
                    raise ValueError(f"{name} does not match its checksum")

            vocab_size = self.tokenizer.vocab_size
            self.train = TokenFile(folder, TRAIN, vocab_size, **index[TRAIN])
            self.validation = TokenFile(folder, VALIDATION, vocab_size, **index[VALIDATION])
