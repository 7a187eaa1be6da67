"""What tests of whole runs share: the words of a small one, and what is read from its folder."""

import json

TEXT = "".join(f"line {i} of a text, don't {i * i}\n" for i in range(400))
USUAL = [
    "size=tiny",
    "model.context_length=32",
    "tokenizer=byte",
    "data=text",
    "data.path=book.txt",
    "train.steps=4",
]
USUAL += ["train.batch_size=4", "eval.max_examples=4", "precision=fp32"]


def with_usual(words):
    """The words, and the usual ones that they do not replace."""
    replaced = {word.partition("=")[0] for word in words}
    if replaced & {"data", "experiment"}:
        replaced.add("data.path")
    return [*(word for word in USUAL if word.partition("=")[0] not in replaced), *words]


def rows(folder, *wanted):
    """These fields of the rows of metrics.jsonl that have all of them."""
    found = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    return [tuple(row[name] for name in wanted) for row in found if set(wanted) <= set(row)]


def weights(folder, step=4):
    return (folder / f"checkpoints/step-{step:08}/model.safetensors").read_bytes()
