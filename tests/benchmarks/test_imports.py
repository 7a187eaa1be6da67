"""Every benchmark imports: what it takes from the rest is still there."""

from importlib import import_module
from pathlib import Path

import pytest

NAMES = sorted(path.stem for path in Path(__file__).parent.glob("*.py") if not path.stem.startswith("test_"))


@pytest.mark.parametrize("name", NAMES)
def test_it_imports(name):
    assert import_module(f"tests.benchmarks.{name}").main
