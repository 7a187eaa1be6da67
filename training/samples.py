"""Samples: what a run says of the first validation example."""

from typing import Any

import torch

from configs.schema import IGNORE_INDEX
from training.accuracy import predict_masks, predict_targets
from training.evaluation import predict
from training.run import Run

PROMPT_TOKENS = 16
NEW_TOKENS = 48


def sample(run: Run) -> dict[str, str]:
    """{name: text}"""
    objective = run.data.objective
    is_encoder = run.model.kind == "encoder"
    batch = next(run.data.validation.evaluation(1))
    with run.evaluating():
        [tokens] = batch.inputs["tokens"]
        if is_encoder and not (objective.generate or run.model.generate):
            predicted, targets = predict_masks(run, batch)
            row: dict[str, Any] = {"masked": tokens, "target": targets, "prediction": predicted}
        elif "source" in batch.inputs or objective.input_kind != "text":
            [row, *_] = predict_targets(run, batch)
        else:
            if is_encoder:  # its text has masks
                [targets] = batch.targets
                tokens = tokens.where(targets == IGNORE_INDEX, targets)
            prompt = tokens[:PROMPT_TOKENS].tolist()
            [continuation] = predict(run, [prompt], NEW_TOKENS)
            row = {"prompt": prompt, "continuation": continuation}
    decode = run.data.tokenizer.decode_with_specials
    return {name: decode(torch.as_tensor(ids).tolist()) for name, ids in row.items()}
