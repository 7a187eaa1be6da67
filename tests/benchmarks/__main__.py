"""List the benchmarks, each with the first line of its file: python -m tests.benchmarks"""

from pathlib import Path

HERE = Path(__file__).parent


def main():
    for path in [*sorted(HERE.glob("[a-z]*.py")), HERE / "gpu/__main__.py"]:
        name = path.relative_to(HERE).parts[0].removesuffix(".py")
        if not name.startswith("test_"):
            summary = path.read_text("utf-8").splitlines()[0].strip('"')
            print(f"{f'tests.benchmarks.{name}':<29} {summary}")


if __name__ == "__main__":
    main()
