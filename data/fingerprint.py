"""Fingerprint: what a file holds, as a sha256. Large files are read again only when they may have changed."""

import hashlib
import json
import os
import time
from contextlib import suppress

LARGE = 1 << 24  # bytes
SETTLED = 2.0  # seconds after which a later change would show in a file's times


class Fingerprints:
    """The digests of files; those of large ones are noted in a file of their own."""

    def __init__(self, notes):
        self.notes = notes
        try:
            self.known = json.loads(notes.read_text())
        except (OSError, ValueError):
            self.known = {}

    def of(self, path):
        stat = os.stat(path)
        if stat.st_size < LARGE:
            return digest(path)
        name = os.path.abspath(path)
        now = [stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino]
        known = self.known.get(name)
        if isinstance(known, list) and known[:-1] == now:
            return known[-1]
        found = digest(path)
        if time.time() - max(stat.st_mtime, stat.st_ctime) > SETTLED:
            self.note(name, [*now, found])
        return found

    def note(self, name, row):
        self.known[name] = row
        draft = self.notes.with_suffix(f".{os.getpid()}")
        with suppress(OSError):  # a note saves time, and nothing hangs on it
            draft.write_text(json.dumps(self.known))
            draft.replace(self.notes)


def digest(path):
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
