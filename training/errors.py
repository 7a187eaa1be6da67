"""Errors of a run that have an exit code of their own."""


class NumbersError(Exception):
    """A loss or gradient that is no number."""


class CheckpointError(Exception):
    """A run's folder, or a checkpoint in it, that is not what it should be."""
