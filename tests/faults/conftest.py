"""Before the first fault test, everything is imported and run once, so that what a trial forks costs
little more than its steps."""

from pathlib import Path

import pytest

from tests.faults.harness import HOME, OVERRIDES
from tests.training.runs import TEXT, train


@pytest.fixture(scope="session", autouse=True)
def whole_run():
    """A text, its tokens, and HOME / RUN, which is never interrupted."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(HOME)
        Path("book.txt").write_text(TEXT)
        for more in ([], ["resume=true"]):
            assert train(*OVERRIDES, *more) == 0
