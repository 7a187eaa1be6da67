"""Record: a file of rows that a run adds to, one a line. Whatever the disk does, the run goes on."""

import json
import os
import sys

from data import disk
from model.checkpoint.files import open_file


class JsonlLog:
    """Rows that could not be written wait for the next time."""

    def __init__(self, path):
        self.path, self.waiting, self.warned = path, b"", False
        self.end = path.stat().st_size if path.exists() else 0
        self.write()

    def add(self, row):
        self.waiting += json.dumps(row).encode() + b"\n"
        self.write()

    def write(self):
        try:
            handle = os.open(self.path, os.O_WRONLY | os.O_CREAT, 0o666)
            try:
                while self.waiting:
                    done = os.pwrite(handle, self.waiting, self.end)
                    self.waiting, self.end = self.waiting[done:], self.end + done
            finally:
                os.close(handle)
        except OSError as error:
            if not self.warned:
                print(f"warning: {self.path} cannot be written ({error.strerror.lower()}); the run goes on",
                      file=sys.stderr)  # fmt: skip
            self.warned = True


def truncate_rows(path, keep):
    """Only the rows to keep, whole ones: a run that goes on writes the others again. The last of all."""
    if not path.exists():
        return
    kept = [row for row in written(path) if keep(row)]
    disk.atomic_write(path, "".join(json.dumps(row) + "\n" for row in kept))


def rows(path):
    """The rows of metrics.jsonl: their numbers, whatever else stands there."""
    return [{name: value for name, value in row.items() if is_number(value)} for row in written(path)]


def is_number(value):
    return isinstance(value, float) or (isinstance(value, int) and abs(value) < 2**63)


def written(path):
    """The rows of such a file; what is torn, of a run that was killed, is left out."""
    found = []
    if not path.exists():
        return found
    with open_file(path) as file:
        lines = file.read().splitlines()
    for line in lines:
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(row, dict) and type(row.get("step")) is int:
            found.append(row)
    return found
