"""Preview the training data: how much text there is, and the first batch, decoded.

python -m data data=text data.path=book.txt model=bert
"""

import sys

from configs.cli import ArgumentParser, print0, run_command
from configs.compose import compose_node
from configs.schema import IGNORE_INDEX

MAX_ROWS = 4  # of the first batch


def main(args: list[str] | None = None) -> None:
    parser = ArgumentParser(prog="python -m data", description=str(__doc__).splitlines()[0])
    help = "a group or setting of configs/"
    parser.add_argument("overrides", nargs="*", metavar="key=value", help=help)
    overrides = parser.parse_args(args).overrides

    # not for --help: they import torch
    from data.corpus import load_data
    from model.pretrained import init_tokenizer
    from training.settings import new_config

    node = compose_node(overrides)
    if node.resume is True:
        raise ValueError("this shows the data of a new run: give its data= instead of resume=")
    config, _ = new_config(node, {}, overrides)
    loaders = load_data(config, init_tokenizer(config.init_from) if config.init_from else None)
    train = loaders.train
    file = train.file

    objective = loaders.objective
    items, used = objective.items, "used"
    if objective.input_kind == "text":  # its examples are no documents
        items, used = "documents", objective.items
    print0(f"{'':<11}{items:>13}{'bytes':>15}{'tokens':>15}{used:>12}")

    for loader in (train, loaders.validation):
        sizes = f"{loader.file.n_items:>13,}{loader.file.n_bytes:>15,}{loader.n_tokens:>15,}"
        print0(f"{loader.file.split:<11}{sizes}{loader.n:>12,}")

    print0(f"\ntokenizer   {config.tokenizer['kind']}, vocab_size {loaders.tokenizer.vocab_size:,}")
    print0(f"            {file.n_bytes / train.n_tokens:.2f} bytes per token (train)")
    print0(f"objective   {loaders.objective_settings['kind']}")
    print0(f"batch size  {train.batch_size}, {train.n / train.batch_size:,.1f} steps per epoch")
    print0(f"cached in   {file.folder}\n")

    batch = train.batch(0)
    shapes = ", ".join(f"{name} {tuple(tensor.shape)}" for name, tensor in batch.inputs.items())
    print0(f"first batch: {shapes}, {batch.count:,} targets")

    classes = objective.classes
    for row in range(min(MAX_ROWS, train.batch_size)):
        print0()
        for name, tensor in (batch.inputs | {"targets": batch.targets}).items():
            if name in ("source", "tokens", "targets"):
                ids = [i for i in tensor[row].tolist() if i != IGNORE_INDEX]
                text = loaders.tokenizer.decode_with_specials(ids)
                if classes and name == "targets":
                    text = classes[ids[0]]
                print0(f"{name:<12}{text!r}")


if __name__ == "__main__":
    sys.exit(run_command(main))
