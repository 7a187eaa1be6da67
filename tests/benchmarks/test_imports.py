"""Every benchmark imports: what it takes from the rest is there."""

from importlib import import_module


def test_every_benchmark():
    for name in ("decoding", "gpu.__main__", "options", "start", "step"):
        assert import_module(f"tests.benchmarks.{name}").main
