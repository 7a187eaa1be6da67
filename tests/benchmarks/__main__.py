"""List the benchmarks, each with the first line of its file: python -m tests.benchmarks"""

from pathlib import Path

HERE = Path(__file__).parent


def main():
    paths = {path.stem: path for path in sorted(HERE.glob("[a-z]*.py"))}
    for name, path in (paths | {"gpu": HERE / "gpu/__main__.py"}).items():
        if not name.startswith("test_"):
            summary = path.read_text("utf-8").splitlines()[0].strip('"')
            print(f"{f'tests.benchmarks.{name}':<29} {summary}")


if __name__ == "__main__":
    main()
