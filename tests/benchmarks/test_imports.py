"""Every benchmark imports, since what it takes from the rest is still there, and is listed."""

from importlib import import_module
from pathlib import Path

import pytest

from tests.benchmarks.__main__ import main as list_benchmarks

NAMES = sorted(
    path.stem for path in Path(__file__).parent.glob("*.py") if not path.stem.startswith("test_")
)


@pytest.mark.parametrize("name", NAMES)
def test_it_imports(name):
    assert import_module(f"tests.benchmarks.{name}").main


def test_every_benchmark_is_listed_with_a_sentence(capsys):
    list_benchmarks()
    lines = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert list(lines) == [f"tests.benchmarks.{name}" for name in (*NAMES[1:], "gpu")]
    assert all(summary.endswith(".") for summary in lines.values()), lines
