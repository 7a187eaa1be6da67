"""JSON Lines logs of a run. Whatever happens to the disk, the run continues."""

import json
import os
from contextlib import suppress
from threading import Lock

from configs.cli import warn
from data import disk
from model.checkpoint.files import MAX_BYTES, open_file


class JsonlLog:
    """Rows that cannot be written are kept for the next time."""

    def __init__(self, path, check_lock=lambda: None):
        self.path, self.check_lock, self.pending, self.warned = path, check_lock, b"", False
        self.mutex = Lock()  # the checkpointer's thread writes, too
        self.flush()

    def add(self, row):
        with self.mutex:
            self.pending += json.dumps(row).encode() + b"\n"
        self.flush()

    def write(self, sync=False):
        handle = disk.open_plain(self.path, flags=os.O_APPEND)
        try:
            self.check_lock()  # of the folder where the file was found
            with self.mutex:
                self.append(handle)
            if sync:
                os.fsync(handle)
        finally:
            os.close(handle)

    def append(self, handle):
        """All rows, or none of them; a row never continues a line that was cut off."""
        size = os.lseek(handle, 0, os.SEEK_END)
        os.lseek(handle, max(size - 1, 0), os.SEEK_SET)
        left = self.pending
        if left and os.read(handle, 1) not in (b"", b"\n"):
            left = b"\n" + left
        try:
            while left:
                left = left[os.write(handle, left) :]
        except OSError:
            os.ftruncate(handle, size)
            raise
        self.pending = b""

    def flush(self):
        try:
            self.write()
        except OSError as error:
            if not self.warned:
                warn(f"{self.path} cannot be written ({error.strerror.lower()}); the run continues")
            self.warned = True


def read_rows(path, max_bytes=MAX_BYTES):
    """All rows but those cut off when a run was killed."""
    if not path.exists():
        return
    with open_file(path) as file:
        for line in iter(lambda: file.readline(max_bytes), b""):
            with suppress(ValueError, RecursionError):
                row = json.loads(line)
                if isinstance(row, dict) and type(row.get("step")) is int:
                    yield row


def rows(path):
    """The numbers in each row of metrics.jsonl, but for infinite and huge ones; NaN stays."""
    for row in read_rows(path):
        numbers = {name: value for name, value in row.items() if isinstance(value, int | float)}
        yield {name: n for name, n in numbers.items() if not abs(n) >= 2**63}


def truncate_rows(path, keep):
    """Drop the rows that a resumed run will write again."""
    if path.exists():
        kept = (
            row for row in read_rows(path, 128 * MAX_BYTES) if keep(row)
        )  # the samples may be long
        disk.atomic_write(path, "".join(json.dumps(row) + "\n" for row in kept))
