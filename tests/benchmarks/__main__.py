"""List the benchmarks, each with the first line of its docstring: python -m tests.benchmarks"""

import ast
from pathlib import Path

HERE = Path(__file__).parent


def benchmarks():
    """{module: the first line of its docstring}, without importing any."""
    paths = [
        path for path in sorted(HERE.glob("*.py")) if not path.stem.startswith(("test_", "__"))
    ]
    texts = {path.stem: path.read_text("utf-8") for path in [*paths, HERE / "gpu/__main__.py"]}
    texts["gpu"] = texts.pop("__main__")
    return {
        name: ast.get_docstring(ast.parse(text)).splitlines()[0] for name, text in texts.items()
    }


def main():
    for name, summary in benchmarks().items():
        print(f"{f'tests.benchmarks.{name}':<29} {summary}")


if __name__ == "__main__":
    main()
