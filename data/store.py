"""Store: a tokenized corpus, a folder of memory-mapped files and an index."""

import hashlib
import json
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy import ndarray

from configs.errors import DataError, errors_as
from data.disk import sync_file, write_synced
from data.tokenizers.tokenizer import Tokenizer, tokenizer_from_state

TRAIN = "train"
VALIDATION = "validation"
REBUILD = "remove it and run again to rebuild it"
BLOCK = 1 << 18  # bytes that have a checksum
SAMPLED = 64  # blocks of a file that are verified at each start


def token_dtype(vocab_size: int) -> type[np.unsignedinteger]:
    return np.uint16 if vocab_size <= 1 << 16 else np.uint32


class TokenWriter:
    """Writes one split of a corpus: its tokens, and where each text ends."""

    n_tokens = 0
    n_bytes = 0
    n_items = 0

    def __init__(self, folder: Path, split: str, vocab_size: int) -> None:
        self.split = split
        self.dtype = token_dtype(vocab_size)
        self.tokens = (folder / f"{split}.tokens").open("xb")
        self.ends = (folder / f"{split}.ends").open("xb")

    def write(self, texts: list[ndarray], n_bytes: int, is_last: bool) -> None:
        """The ids of each text, of so many bytes; is_last: a document, pair or conversation ends."""
        for ids in texts:
            self.tokens.write(ids.astype(self.dtype).tobytes())
            self.n_tokens += len(ids)
            self.ends.write(np.int64(self.n_tokens).tobytes())
        self.n_bytes += n_bytes
        self.n_items += is_last

    def close(self) -> None:
        self.tokens.close()
        self.ends.close()


def checksums(path: Path, every: int = 1) -> list[int]:
    """CRC-32 of the blocks of a file, or of every n-th."""
    sums = []
    with path.open("rb") as file:
        for start in range(0, path.stat().st_size, every * BLOCK):
            file.seek(start)
            sums.append(zlib.crc32(file.read(BLOCK)))
    return sums


def write_index(
    folder: Path, options: str, tokenizer: Tokenizer, parts: list[TokenWriter], skipped: list[str]
) -> None:
    """Sync what was written, and add its counts, the tokenizer, and a hash of it all."""
    state = tokenizer.state()
    content = hashlib.sha256(json.dumps([options, state]).encode())
    index: dict[str, Any] = {"tokenizer": state, "skipped": skipped, "sums": {}}
    for part in parts:
        if not part.n_tokens:
            raise DataError(
                f"the {part.split} split is empty; change data.val_fraction or data.val_path, or "
                "give more texts"
            )
        index[part.split] = {"n_bytes": part.n_bytes, "n_items": part.n_items}

    for path in sorted(folder.iterdir()):
        content.update(sync_file(path).encode())
        index["sums"][path.name] = checksums(path)
    index["content"] = content.hexdigest()
    write_synced(folder / "index.json", json.dumps(index))


@dataclass
class TokenFile:
    """The tokens of one split: `n_bytes` of text in `n_items` documents or pairs."""

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

    def texts(self, starts: ndarray, lengths: ndarray) -> list[ndarray]:
        parts = map(slice, starts, starts + lengths)
        return [self.tokens[part].astype(np.int64) for part in parts]

    def pairs(self) -> tuple[ndarray, ndarray]:
        """(pair, 2) each: where its source and its target start, and their lengths."""
        lengths = np.diff(self.ends, prepend=0)
        starts = self.ends - lengths
        return starts.reshape(-1, 2), lengths.reshape(-1, 2)


class Corpus:
    """The tokenizer, and the train and validation splits."""

    def __init__(self, folder: Path, verify: bool = False) -> None:
        """verify: all blocks of its files, not only a sample."""
        self.folder = folder

        with errors_as(DataError, f"{folder} is damaged; {REBUILD}"):
            index = json.loads((folder / "index.json").read_text())
            self.tokenizer = tokenizer_from_state(index["tokenizer"])
            self.content_hash = index["content"]
            self.skipped = index["skipped"]
            for name, sums in index["sums"].items():
                every = 1 if verify else max(1, len(sums) // SAMPLED)
                if checksums(folder / name, every) != sums[::every]:
                    raise ValueError(f"{name} is not as it was written")
            vocab_size = self.tokenizer.vocab_size
            self.train = TokenFile(folder, TRAIN, vocab_size, **index[TRAIN])
            self.validation = TokenFile(folder, VALIDATION, vocab_size, **index[VALIDATION])
