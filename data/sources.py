"""Sources of text: each knows what it reads, and yields its documents in the same order every time."""

import hashlib
import os
import urllib.request
from pathlib import Path
from typing import Annotated

from configs.errors import DataError
from configs.registry import Count
from data.disk import disk_errors
from data.files import FileSource, digest, resolve_paths, stdlib_files
from data.readers import (
    download_error,
    file_document,
    file_rows,
    from_text,
    hub_rows,
    read_lines,
    table_files,
)

SHAKESPEARE = "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt"
SHAKESPEARE_SHA256 = "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed"
SHAKESPEARE_BYTES = 1_115_394


class Python(FileSource):
    """The running Python's standard library, a document for each file."""

    def files(self):
        return stdlib_files()

    def documents(self):
        return map(file_document, self.files())


class Text(FileSource):
    """Plain text: a file, a folder with all that is in it, or a pattern."""

    def __init__(self, path: str, split_on: Annotated[str, ("file", "line", "paragraph")], cache):
        self.path, self.split_on, self.cache = path, split_on, cache

    def files(self):
        return resolve_paths(self.path, self.cache)

    def documents(self):
        for path in self.files():
            if self.split_on == "file":
                yield file_document(path)
            else:
                yield from self.parts(path)

    def parts(self, path):
        """The lines of a file, or its paragraphs: lines up to an empty one."""
        paragraph = []
        for number, line in enumerate(read_lines(path), 1):
            if self.split_on == "line":
                yield from_text(f"{path}:{number}", line)
            elif line.strip():
                paragraph.append(line)
            elif paragraph:
                yield from_text(f"{path}:{number}", "\n".join(paragraph))
                paragraph = []
        if paragraph:
            yield from_text(str(path), "\n".join(paragraph))


class Table(FileSource):
    """A field of a table's rows, a document for each: jsonl, json, csv, tsv, parquet."""

    def __init__(self, path: str, field: str, cache):
        self.path, self.field, self.cache = path, field, cache

    def files(self):
        return table_files(self.path, self.cache)

    def documents(self):
        return (from_text(place, text) for place, (text,) in file_rows(self.files(), [self.field]))


class Hub:
    """A field of a dataset of the Hugging Face Hub, or of a folder that holds one. `streaming` reads what is
    needed and keeps no copy; `max_tokens` ends early."""

    input_kind = "text"

    def __init__(self, id: str, name: str | None, split: str, field: str, revision: str | None,
                 streaming: bool, max_tokens: Count | None):  # fmt: skip
        self.id, self.name, self.split, self.field = id, name, split, field
        self.revision, self.streaming, self.max_tokens = revision, streaming, max_tokens
        self.commit = revision  # the very state of the dataset, once it is known

    def files(self):
        """Of a dataset in a folder."""
        return resolve_paths(self.id, None)

    def local(self):
        return os.path.isdir(os.path.expanduser(self.id))

    def digest(self, fingerprints):
        if self.local():
            return FileSource.digest(self, fingerprints)
        self.commit = newest_commit(self.id, self.revision, fingerprints)
        return self.commit

    def stamp(self):
        return FileSource.stamp(self) if self.local() else None

    def n_bytes(self):
        return FileSource.n_bytes(self) if self.local() else None

    def documents(self):
        place = os.path.expanduser(self.id) if self.local() else self.id
        revision = self.revision if self.local() else self.commit
        rows = hub_rows(place, self.name, self.split, revision, self.streaming, [self.field])
        return (from_text(place, text) for place, (text,) in rows)


def newest_commit(dataset, revision, fingerprints):
    """The commit that a revision names now; without network, the one it named last."""
    import huggingface_hub

    note = f"hub:{dataset}@{revision}"
    try:
        found = huggingface_hub.HfApi().dataset_info(dataset, revision=revision).sha
    except Exception as error:  # of the network, of many libraries
        if found := fingerprints.known.get(note):
            return found
        raise DataError(download_error(dataset, error)) from None
    fingerprints.note(note, found)
    return found


class Shakespeare(FileSource):
    """The small file of Shakespeare's lines that many compare their models on."""

    def __init__(self, cache):
        self.path = Path(cache).expanduser() / "tinyshakespeare.txt"

    def files(self):
        if not self.path.exists():
            self.fetch()
        if digest(self.path) != SHAKESPEARE_SHA256:
            raise DataError(f"{self.path} is not the file it should be; remove it and run again")
        return [self.path]

    def documents(self):
        return map(file_document, self.files())

    def fetch(self):
        try:
            with urllib.request.urlopen(SHAKESPEARE, timeout=20) as answer:
                text = answer.read(SHAKESPEARE_BYTES + 1)
            if hashlib.sha256(text).hexdigest() != SHAKESPEARE_SHA256:
                raise OSError("something else was sent")
        except OSError as error:
            raise DataError(
                f"cannot fetch {SHAKESPEARE} ({getattr(error, 'reason', error)}); place a copy of that file "
                f"at {self.path}"
            ) from None
        with disk_errors("cannot write"):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            draft = self.path.with_suffix(f".{os.getpid()}")
            draft.write_bytes(text)
            draft.replace(self.path)
