"""JSON Lines logs of a run. Whatever happens to the disk, the run continues."""

import json
import os
import sys
from contextlib import suppress

from configs.cli import print
from data import disk
from model.checkpoint.files import MAX_BYTES, open_file


class JsonlLog:
    """Rows that cannot be written are kept for the next time."""

    def __init__(self, path):
        self.path, self.pending, self.warned = path, b"", False
        self.flush()

    def add(self, row):
        self.pending += json.dumps(row).encode() + b"\n"
        self.flush()

    def flush(self):
        try:
            handle = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
            try:
                while self.pending:
                    self.pending = self.pending[os.write(handle, self.pending) :]
            finally:
                os.close(handle)
        except OSError as error:
            if not self.warned:
                reason = f"{self.path} cannot be written ({error.strerror.lower()})"
                print(f"warning: {reason}; the run continues", file=sys.stderr)
            self.warned = True


def read_rows(path):
    """All rows but those cut off when a run was killed."""
    if not path.exists():
        return
    with open_file(path) as file:
        for line in iter(lambda: file.readline(MAX_BYTES), b""):
            with suppress(ValueError, RecursionError):
                row = json.loads(line)
                if isinstance(row, dict) and type(row.get("step")) is int:
                    yield row


def rows(path):
    """The numbers in each row of metrics.jsonl."""
    for row in read_rows(path):
        numbers = {name: value for name, value in row.items() if isinstance(value, int | float)}
        yield {name: n for name, n in numbers.items() if isinstance(n, float) or abs(n) < 2**63}


def truncate_rows(path, keep):
    """Drop the rows that a resumed run will write again."""
    if path.exists():
        disk.atomic_write(path, "".join(json.dumps(row) + "\n" for row in read_rows(path) if keep(row)))
