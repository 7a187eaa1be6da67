"""Errors with an exit code of their own. Any other ValueError ends a command with 2."""

from collections.abc import Iterator
from contextlib import contextmanager


class DataError(ValueError):
    exit_code = 3  # the text or table cannot be used as it is


class CheckpointError(Exception):
    exit_code = 4  # a run folder, or a checkpoint in it, is damaged or incomplete


class TokenizerError(ValueError):
    exit_code = 4  # the tokenizer of a run or model cannot be used


class HubError(ValueError):
    exit_code = 4  # a folder or model cannot be converted from or to the Hugging Face formats


class RunLockedError(Exception):
    exit_code = 8  # another process is writing to the run folder


class StopRequested(SystemExit):
    """A signal asks the run to stop. This is not an Exception, so it also ends a sweep."""

    code = 75  # EX_TEMPFAIL: try again later


@contextmanager
def errors_as(kind: type[Exception], reason: str) -> Iterator[None]:
    """Turn errors of any type, as libraries raise them, into one of ours."""
    try:
        yield
    except kind:
        raise
    except Exception as error:
        raise kind(f"{reason}: {first_line(error.__cause__ or error)}") from None


def first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
