"""Every benchmark is listed with a sentence, and imports: what it takes from the rest is there."""

from importlib import import_module

from tests.benchmarks.__main__ import main as list_benchmarks


def test_every_benchmark(capsys):
    list_benchmarks()
    lines = capsys.readouterr().out.splitlines()
    assert lines
    for line in lines:
        name, _ = line.split(maxsplit=1)
        assert import_module(
            "tests.benchmarks.gpu.__main__" if name.endswith(".gpu") else name
        ).main
