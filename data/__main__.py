"""What would be trained on: how much text there is, and the first batch, decoded.

python -m data data=text data.path=book.txt model=bert
"""

import argparse
import sys

from configs.cli import run_command
from configs.compose import compose
from data.corpus import load, tokenizing_progress
from data.objectives import IGNORE_INDEX

ROWS = 4  # of the first batch


def show(config):
    with tokenizing_progress() as report:
        loaders = load(config, report=report)
    of_pairs = loaders.train.objective.input_kind == "pairs"
    names = ["", "pairs" if of_pairs else "documents", "bytes", "tokens", "used" if of_pairs else "windows"]
    print("{:<12}{:>12}{:>15}{:>15}{:>12}".format(*names))
    for name, stream in (("train", loaders.train), ("validation", loaders.validation)):
        part = stream.part
        print(f"{name:<12}{part.n_items:>12,}{part.n_bytes:>15,}{part.n_tokens:>15,}{stream.n:>12,}")
    part, size = loaders.train.part, config.train.batch_size
    print(
        f"\ntokenizer   {config.tokenizer['kind']}, {loaders.tokenizer.vocab_size:,} words in its vocabulary"
    )
    print(f"            {part.n_bytes / part.n_tokens:.2f} bytes in a token of training")
    print(f"objective   {config.objective['kind']}")
    print(f"batch       {size}, so {loaders.train.n / size:,.1f} steps an epoch")
    if of_pairs and (n := loaders.train.n_too_long):
        print(f"too long    {n:,} pairs of training exceed the context ({config.objective['too_long']})")
    print(f"kept in     {part.path.parent}\n")
    show_batch(loaders.train.batch(0), loaders.tokenizer)


def show_batch(batch, tokenizer):
    shapes = ", ".join(f"{name} {tuple(tensor.shape)}" for name, tensor in batch.inputs.items())
    print(f"the first batch: {shapes}, {batch.count:,} targets")
    for row in range(min(ROWS, len(batch.targets))):
        print()
        for name, tensor in batch.inputs.items():
            if not name.endswith("visible"):
                print(f"{name:<12}{tokenizer.decode_with_specials(tensor[row].tolist())!r}")
        asked = [i for i in batch.targets[row].tolist() if i != IGNORE_INDEX]
        print(f"{'targets':<12}{tokenizer.decode_with_specials(asked)!r}")


def main(words):
    parser = argparse.ArgumentParser(
        prog="python -m data", description="What would be trained on, and the first batch, decoded."
    )
    parser.add_argument(
        "words", nargs="*", metavar="key=value", help="what to change: a group or an option of configs/"
    )
    show(compose(parser.parse_args(words).words))


if __name__ == "__main__":
    sys.exit(run_command(main, sys.argv[1:]))
