"""Sources of text: each knows what it reads, and yields its documents in the same order every time."""

import hashlib
import os
import urllib.request
from pathlib import Path

from data.documents import file_document, read_lines, whole
from data.errors import DataError, disk_errors
from data.files import FileSource, found_files, library_files
from data.fingerprint import digest
from data.rows import file_rows, hub_rows, table_files, unreachable

SHAKESPEARE = "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt"
SHAKESPEARE_SHA256 = "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed"
SHAKESPEARE_BYTES = 1_115_394


class Python(FileSource):
    """The running Python's standard library, a document for each file."""

    def files(self):
        return library_files()

    def documents(self):
        return map(file_document, self.files())


class Text(FileSource):
    """Plain text: a file, a folder with all that is in it, or a pattern."""

    def __init__(self, path: str, document: str, cache):
        if document not in ("file", "line", "paragraph"):
            raise ValueError(f"document is {document!r}; choose one of: file, line, paragraph")
        self.path, self.document, self.cache = path, document, cache

    def files(self):
        return found_files(self.path, self.cache)

    def documents(self):
        for path in self.files():
            if self.document == "file":
                yield file_document(path)
            else:
                yield from self.parts(path)

    def parts(self, path):
        """The lines of a file, or its paragraphs: lines up to an empty one."""
        paragraph = []
        for number, line in enumerate(read_lines(path), 1):
            if self.document == "line":
                yield whole(f"{path}:{number}", line)
            elif line.strip():
                paragraph.append(line)
            elif paragraph:
                yield whole(f"{path}:{number}", "\n".join(paragraph))
                paragraph = []
        if paragraph:
            yield whole(str(path), "\n".join(paragraph))


class Table(FileSource):
    """A field of a table's rows, a document for each: jsonl, json, csv, tsv, parquet."""

    def __init__(self, path: str, field: str, cache):
        self.path, self.field, self.cache = path, field, cache

    def files(self):
        return table_files(self.path, self.cache)

    def documents(self):
        return (whole(place, text) for place, (text,) in file_rows(self.files(), [self.field]))


class Hub:
    """A field of a dataset of the Hugging Face Hub, or of a folder that holds one. `streaming` reads what is
    needed and keeps no copy; `max_tokens` ends early."""

    reads = "text"

    def __init__(self, id: str, name: str | None, split: str, field: str, revision: str | None,
                 streaming: bool, max_tokens: int | None):  # fmt: skip
        if max_tokens is not None and max_tokens < 1:
            raise ValueError(f"max_tokens must be at least 1 and is {max_tokens}")
        self.id, self.name, self.split, self.field = id, name, split, field
        self.revision, self.streaming, self.max_tokens = revision, streaming, max_tokens
        self.commit = revision  # the very state of the dataset, once it is known

    def files(self):
        """Of a dataset in a folder."""
        return found_files(self.id, None)

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
        return (whole(place, text) for place, (text,) in rows)


def newest_commit(dataset, revision, fingerprints):
    """The commit that a revision names now; without network, the one it named last."""
    import huggingface_hub

    note = f"hub:{dataset}@{revision}"
    try:
        found = huggingface_hub.HfApi().dataset_info(dataset, revision=revision).sha
    except Exception as error:  # of the network, of many libraries
        if found := fingerprints.known.get(note):
            return found
        raise DataError(unreachable(dataset, error)) from None
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
