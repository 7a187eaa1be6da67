"""What a model predicts for validation examples, targets and masked tokens; the accuracy of both."""

import json
from collections.abc import Callable
from functools import partial
from typing import Any, TextIO

import numpy as np
from torch import Tensor

from configs.registry import Registry
from configs.schema import IGNORE_INDEX
from data.batch import Batch
from data.tokenizers.tokenizer import Tokenizer
from model.generate.beams import beam_search
from model.generate.decode import Rows, generate
from training.run import Run


def predict_targets(run: Run, batch: Batch, beams: int = 0) -> list[dict[str, Any]]:
    """{source, target, prediction: ids} of each run of targets: a conversation has several."""
    rows = []
    for number, is_target in enumerate((batch.targets != IGNORE_INDEX).numpy()):
        # where a run of targets begins, and where it ends
        edges = np.flatnonzero(np.diff(is_target, prepend=False, append=False))
        for first, end in edges.reshape(-1, 2):
            source = source_of(batch.inputs, number, first).tolist()
            target = batch.targets[number, first:end].tolist()
            rows.append({"source": source, "target": until_end(target, run.data.tokenizer)})

    sources = [row["source"] for row in rows]
    longest = max(len(row["target"]) for row in rows)
    predictions = predict(run, sources, longest, beams)
    for row, prediction in zip(rows, predictions, strict=True):
        row["prediction"] = prediction
    return rows


def source_of(inputs: dict[str, Tensor], number: int, first: int) -> Tensor:
    """The source without padding; for a decoder, all tokens up to the one that predicts the first
    target."""
    if "source" not in inputs:
        return inputs["tokens"][number, : first + 1]
    source = inputs["source"][number]
    return source[inputs["source_visible"][number]] if "source_visible" in inputs else source


def until_end(ids: list[int], tokenizer: Tokenizer) -> list[int]:
    """The ids up to the first end token, at which generation stops; a chat template may mark white
    space after it."""
    stop = set(tokenizer.end_ids)
    ends = [number for number, i in enumerate(ids, 1) if i in stop]
    return ids[: min(ends, default=None)]


def predict_masks(run: Run, batch: Batch) -> tuple[Tensor, Tensor]:
    """Returns (the most likely token, the target) of each masked position."""
    batch = batch.to(run.world.device)
    is_target = batch.targets != IGNORE_INDEX
    hidden = run.model.hidden(**batch.inputs)
    logits = run.model.head(hidden[is_target])
    return logits.argmax(-1), batch.targets[is_target]


def predict(run: Run, sources: Rows, max_new_tokens: int, beams: int = 0) -> Rows:
    """The new ids after each text of a decoder, or for each source, greedily or by beam search."""
    tokenizer = run.data.tokenizer
    options: Any = {"max_new_tokens": max_new_tokens, "stop": tokenizer.end_ids}
    if beams:
        options |= {"beams": beams, "length_penalty": 1.0}
        search: Any = partial(beam_search, run.model, [[tokenizer.start]], **options)
        return [[step.ids[0] for step in search([source])] for source in sources]
    prompts = sources
    if run.model.kind == "encoder_decoder":
        prompts = [[tokenizer.start]] * len(sources)
        options["sources"] = sources
    # a step has an id for every row, None for a row that has ended
    rows = zip(*generate(run.model, prompts, **options), strict=True)
    return [[i for i in row if i is not None] for row in rows]


Accuracy = Callable[[Run, Batch], tuple[int, int]]  # (number of correct predictions, of all)


def masked_accuracy(run: Run, batch: Batch) -> tuple[int, int]:
    predicted, targets = predict_masks(run, batch)
    return int((predicted == targets).sum()), batch.count


def exact_match(
    run: Run, batch: Batch, beams: int = 0, file: TextIO | None = None
) -> tuple[int, int]:
    """Count the exact predictions. Each is also written to the file, as a line."""
    tokenizer = run.data.tokenizer
    decode = tokenizer.decode_with_specials
    rows = predict_targets(run, batch, beams)
    correct = 0
    for row in rows:
        correct += decode(row["prediction"]) == decode(row["target"])
        if file:
            texts = {name: tokenizer.decode(ids) for name, ids in row.items()}
            if run.data.objective.input_kind == "chat":  # its turns end with special tokens
                texts["source"] = decode(row["source"])
            file.write(json.dumps(texts) + "\n")
    return correct, len(rows)


ACCURACIES: Registry[Accuracy] = Registry(
    val_accuracy=masked_accuracy,
    val_exact_match=exact_match,
)
