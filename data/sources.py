"""Sources of text. Each yields its documents in the same order every time."""

import hashlib
import os
import urllib.request
from pathlib import Path
from typing import Annotated

from configs.errors import DataError
from configs.registry import Count
from data.disk import disk_errors
from data.files import FileSource, digest, resolve_paths, stdlib_files
from data.readers import Document, download_error, file_rows, hub_rows, read_lines, table_files

SHAKESPEARE = "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt"
SHAKESPEARE_SHA256 = "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed"
SHAKESPEARE_BYTES = 1_115_394


class Python(FileSource):
    """The running Python's standard library; each file is a document."""

    files = staticmethod(stdlib_files)

    def documents(self):
        return map(Document, self.files())


class Text(FileSource):
    """Plain text: a file, a folder (recursively) or a glob."""

    def __init__(self, path: str, split_on: Annotated[str, ("file", "line", "paragraph")], cache):
        self.path, self.split_on, self.cache = path, split_on, cache

    def files(self):
        return resolve_paths(self.path, self.cache)

    def documents(self):
        for path in self.files():
            if self.split_on == "file":
                yield Document(path)
            else:
                yield from self.parts(path)

    def parts(self, path):
        """Each line of a file, or each paragraph: lines up to an empty one."""
        paragraph = []
        for number, line in enumerate(read_lines(path), 1):
            if self.split_on == "line":
                yield Document(f"{path}:{number}", line)
            elif line.strip():
                paragraph.append(line)
            elif paragraph:
                yield Document(f"{path}:{number}", "\n".join(paragraph))
                paragraph = []
        if paragraph:
            yield Document(path, "\n".join(paragraph))


class Table(FileSource):
    """One field of a table (jsonl, json, csv, tsv, parquet); each row is a document."""

    def __init__(self, path: str, field: str, cache):
        self.path, self.field, self.cache = path, field, cache

    def files(self):
        return table_files(self.path, self.cache)

    def documents(self):
        return (Document(place, text) for place, (text,) in file_rows(self.files(), [self.field]))


class Hub(FileSource):
    """One field of a dataset on the Hugging Face Hub, or in a folder; `streaming` keeps no copy."""

    def __init__(self, id: str, name: str | None, split: str, field: str, revision: str | None,
                 streaming: bool, max_tokens: Count | None):  # fmt: skip
        self.id, self.name, self.split, self.field = id, name, split, field
        self.revision, self.streaming, self.max_tokens = revision, streaming, max_tokens
        self.commit = revision  # digest() resolves it

    @property
    def folder(self):
        """The folder that `id` names, or None."""
        return folder if os.path.isdir(folder := os.path.expanduser(self.id)) else None

    def files(self):
        return resolve_paths(self.id, None) if self.folder else []

    def digest(self, hashes):
        """Of a folder's files; of a dataset on the hub, its commit: offline, the last that is known."""
        if self.folder:
            return super().digest(hashes)
        import huggingface_hub

        key = f"hub:{self.id}@{self.revision}"
        try:
            self.commit = huggingface_hub.HfApi().dataset_info(self.id, revision=self.revision).sha
        except Exception as error:  # of the network, of many libraries
            if key not in hashes.known:
                raise download_error(self.id, error) from None
            self.commit = hashes.known[key]
        else:
            hashes.put(key, self.commit)
        return self.commit

    def documents(self):
        place, revision = (self.folder, self.revision) if self.folder else (self.id, self.commit)
        rows = hub_rows(place, self.name, self.split, revision, self.streaming, [self.field])
        return (Document(place, text) for place, (text,) in rows)


class Shakespeare(FileSource):
    """Tiny Shakespeare, the text of many small benchmarks; downloaded once."""

    def __init__(self, cache):
        self.path = Path(cache).expanduser() / "tinyshakespeare.txt"

    def files(self):
        if not self.path.exists():
            self.download()
        if digest(self.path) != SHAKESPEARE_SHA256:
            raise DataError(f"{self.path} is not the expected file; remove it and run again")
        return [self.path]

    def documents(self):
        return map(Document, self.files())

    def download(self):
        try:
            with urllib.request.urlopen(SHAKESPEARE, timeout=20) as response:
                text = response.read(SHAKESPEARE_BYTES + 1)
            if hashlib.sha256(text).hexdigest() != SHAKESPEARE_SHA256:
                raise OSError("the response is not the expected file")
        except OSError as error:
            reason = getattr(error, "reason", error)
            raise DataError(
                f"cannot download {SHAKESPEARE} ({reason}); put a copy of that file at {self.path}"
            ) from None
        with disk_errors("cannot write"):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            draft = self.path.with_suffix(f".{os.getpid()}")
            draft.write_bytes(text)
            draft.replace(self.path)
