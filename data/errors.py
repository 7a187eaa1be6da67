"""Errors: what is wrong with the text, in one sentence."""

import errno
from contextlib import contextmanager


class DataError(ValueError):
    """The data cannot be used as they are. Commands end with exit code 3."""


@contextmanager
def disk_errors(doing):
    """What the disk refuses, said as a DataError."""
    try:
        yield
    except OSError as error:
        if error.strerror is None:
            raise
        hint = ""
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            hint = "; free some space, or put the tokens elsewhere with data.cache=FOLDER"
        elif error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            hint = "; choose a folder that can be written with data.cache=FOLDER"
        where = f" {error.filename}" if error.filename else ""
        raise DataError(f"{doing}{where}: {error.strerror.lower()}{hint}") from None
