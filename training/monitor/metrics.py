"""JSON Lines logs of a run. Whatever happens to the disk, the run continues."""

import json
import os
import sys

from data import disk
from model.checkpoint.files import open_file


class JsonlLog:
    """Rows that cannot be written are kept for the next time."""

    def __init__(self, path):
        self.path, self.pending, self.warned = path, b"", False
        self.end = path.stat().st_size if path.exists() else 0
        self.flush()

    def add(self, row):
        self.pending += json.dumps(row).encode() + b"\n"
        self.flush()

    def flush(self):
        try:
            handle = os.open(self.path, os.O_WRONLY | os.O_CREAT, 0o666)
            try:
                os.lseek(handle, self.end, os.SEEK_SET)
                while self.pending:
                    written = os.write(handle, self.pending)
                    self.pending, self.end = self.pending[written:], self.end + written
            finally:
                os.close(handle)
        except OSError as error:
            if not self.warned:
                reason = error.strerror.lower()
                print(
                    f"warning: {self.path} cannot be written ({reason}); the run continues", file=sys.stderr
                )
            self.warned = True


def read_rows(path):
    """Without lines that were cut off when a run was killed."""
    if not path.exists():
        return
    with open_file(path) as file:
        for line in file.read().splitlines():
            try:
                row = json.loads(line)
            except (ValueError, RecursionError):
                continue
            if isinstance(row, dict) and type(row.get("step")) is int:
                yield row


def rows(path):
    """The numbers in each row of metrics.jsonl."""
    return [{name: value for name, value in row.items() if is_number(value)} for row in read_rows(path)]


def is_number(value):
    return isinstance(value, float) or (isinstance(value, int) and abs(value) < 2**63)


def truncate_rows(path, keep):
    """Drop rows that a resumed run writes again."""
    if path.exists():
        kept = "".join(json.dumps(row) + "\n" for row in read_rows(path) if keep(row))
        disk.atomic_write(path, kept)
