"""The errors that have an exit code of their own. Any other ValueError ends a command with 2."""


class DataError(ValueError):
    """The text or table cannot be used as it is."""

    exit_code = 3


class CheckpointError(Exception):
    """A run folder, or a checkpoint in it, that is damaged or incomplete."""

    exit_code = 4


class HubError(ValueError):
    """A folder or model that cannot be converted from or to the Hugging Face formats."""

    exit_code = 4


class NonFiniteError(Exception):
    """A loss or gradient that is NaN or infinite."""

    exit_code = 5


class DiskError(Exception):
    """A disk that is too full to keep what a run has to keep."""

    exit_code = 6


class RunLockedError(Exception):
    """A run folder that another process is writing to."""

    exit_code = 8


class StopRequested(Exception):
    """A signal asked the run to stop; it has been saved."""

    exit_code = 75  # EX_TEMPFAIL of sysexits.h: try again later
