"""Errors of a run that is under way."""


class NumbersError(ValueError):
    """A loss or a gradient is not finite."""
