"""Preview the training data: how much text there is, and the first batch, decoded.

python -m data data=text data.path=book.txt model=bert
"""

import sys

from configs.cli import ArgumentParser, print, run_command
from configs.compose import check_flags, compose
from configs.schema import IGNORE_INDEX

MAX_ROWS = 4  # of the first batch


def main(args):
    check_flags(args, {"-h", "--help"})
    parser = ArgumentParser(prog="python -m data", description=__doc__.splitlines()[0])
    parser.add_argument(
        "overrides", nargs="*", metavar="key=value", help="a group or setting of configs/"
    )
    config = compose(parser.parse_args(args).overrides)
    from data.corpus import load, tokenizing_progress  # not for --help: it imports torch

    with tokenizing_progress() as report:
        loaders = load(config, report=report)
    train, tokenizer, size = loaders.train, loaders.tokenizer, config.train.batch_size
    pairs = train.objective.input_kind == "pairs"
    names = [
        "",
        "pairs" if pairs else "documents",
        "bytes",
        "tokens",
        "used" if pairs else "sequences",
    ]
    print("{:<12}{:>12}{:>15}{:>15}{:>12}".format(*names))
    for name, loader in (("train", train), ("validation", loaders.validation)):
        part = loader.part
        print(
            f"{name:<12}{part.n_items:>12,}{part.n_bytes:>15,}{part.n_tokens:>15,}{loader.n:>12,}"
        )
    print(f"\ntokenizer   {config.tokenizer['kind']}, vocab_size {tokenizer.vocab_size:,}")
    print(f"            {train.part.n_bytes / train.part.n_tokens:.2f} bytes per token (train)")
    print(f"objective   {config.objective['kind']}")
    print(f"batch size  {size}, {train.n / size:,.1f} steps per epoch")
    if pairs and train.n_too_long:
        print(f"too long    {train.n_too_long:,} training pairs ({config.objective['too_long']})")
    print(f"cached in   {train.part.path.parent}\n")

    batch = train.batch(0)
    shapes = ", ".join(f"{name} {tuple(tensor.shape)}" for name, tensor in batch.inputs.items())
    print(f"first batch: {shapes}, {batch.count:,} targets")
    for row in range(min(MAX_ROWS, size)):
        print()
        for name, tensor in (batch.inputs | {"targets": batch.targets}).items():
            if not name.endswith("visible"):
                ids = [i for i in tensor[row].tolist() if i != IGNORE_INDEX]
                print(f"{name:<12}{tokenizer.decode_with_specials(ids)!r}")


if __name__ == "__main__":
    sys.exit(run_command(main, sys.argv[1:]))
