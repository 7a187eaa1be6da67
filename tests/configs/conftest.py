"""Command lines run as those of training do."""

from tests.training.conftest import room, start  # noqa: F401
