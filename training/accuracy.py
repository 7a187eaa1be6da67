"""Accuracy: what a run predicts of masked tokens, pairs and conversations, beside what is right."""

import json
from typing import Any, TextIO

import numpy as np
from torch import Tensor

from configs.schema import IGNORE_INDEX
from data.batch import Batch
from model.generate.beams import beam_search
from model.generate.decode import Rows
from training.evaluation import predict
from training.run import Run


def masked_accuracy(run: Run, batch: Batch) -> tuple[int, int]:
    predicted, targets = predict_masks(run, batch)
    return int((predicted == targets).sum()), batch.count


def predict_masks(run: Run, batch: Batch) -> tuple[Tensor, Tensor]:
    """(the most likely token, the target) of each masked position"""
    batch = batch.to(run.world.device)
    is_target = batch.targets != IGNORE_INDEX
    hidden = run.model.hidden(**batch.inputs)
    logits = run.model.head(hidden[is_target])
    return logits.argmax(-1), batch.targets[is_target]


def exact_match(
    run: Run, batch: Batch, beams: int = 0, file: TextIO | None = None
) -> tuple[int, int]:
    """Each answer is also a line of the file."""
    tokenizer = run.data.tokenizer
    decode = tokenizer.decode_with_specials
    rows = predict_targets(run, batch, beams)
    for row in rows if file else []:
        texts = {name: tokenizer.decode(ids) for name, ids in row.items()}
        if run.data.objective.input_kind == "chat":  # its turns end with special tokens
            texts["source"] = decode(row["source"])
        print(json.dumps(texts), file=file)
    return sum(decode(row["prediction"]) == decode(row["target"]) for row in rows), len(rows)


def predict_targets(run: Run, batch: Batch, beams: int = 0) -> list[dict[str, Any]]:
    """{source, target, prediction: ids} of each run of targets: a conversation has several."""
    rows = []
    stop = set(run.data.tokenizer.end_ids)
    for number, is_target in enumerate((batch.targets != IGNORE_INDEX).numpy()):
        # where a run of targets begins, and where it has ended
        edges = np.flatnonzero(np.diff(is_target, prepend=False, append=False))
        for first, end in edges.reshape(-1, 2):
            source = source_of(batch.inputs, number, first).tolist()
            target = batch.targets[number, first:end].tolist()
            # up to what generation stops at; a chat template may mark white space behind it
            ends = [position for position, i in enumerate(target, 1) if i in stop]
            rows.append({"source": source, "target": target[: min(ends, default=None)]})

    sources = [row["source"] for row in rows]
    longest = max(len(row["target"]) for row in rows)
    if beams:
        predictions = predict_by_beams(run, sources, longest, beams)
    else:
        predictions = predict(run, sources, longest)
    return [row | {"prediction": ids} for row, ids in zip(rows, predictions, strict=True)]


def source_of(inputs: dict[str, Tensor], number: int, first: int) -> Tensor:
    """Without padding; of a decoder, all up to what predicts the first target."""
    if "source" not in inputs:
        return inputs["tokens"][number, : first + 1]
    source = inputs["source"][number]
    return source[inputs["source_visible"][number]] if "source_visible" in inputs else source


def predict_by_beams(run: Run, sources: Rows, max_new_tokens: int, beams: int) -> Rows:
    tokenizer = run.data.tokenizer
    options: Any = {"max_new_tokens": max_new_tokens, "stop": tokenizer.end_ids}
    options |= {"beams": beams, "length_penalty": 1.0}
    predictions: Any = []
    for source in sources:
        steps = beam_search(run.model, [[tokenizer.start]], [source], **options)
        predictions.append([step.ids[0] for step in steps])
    return predictions
