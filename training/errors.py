"""Errors of a run that have an exit code of their own."""


class NumbersError(Exception):
    """A loss or gradient that is no number."""


class CheckpointError(Exception):
    """A run's folder, or a checkpoint in it, that is not what it should be."""


class DiskError(Exception):
    """A disk that takes no more of what a run has to keep."""


class BusyError(Exception):
    """A run's folder that another process is writing to."""


class Stopped(Exception):
    """A signal has asked the run to end."""
