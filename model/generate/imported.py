"""A Hugging Face folder as a run, for sample.py: nothing is written."""

import json
from dataclasses import asdict

from configs.errors import CheckpointError
from model.checkpoint import LoadedRun
from model.hub.convert import load_hf


def load_folder(place: str, which: str | None) -> LoadedRun:
    if which not in (None, "latest"):
        raise CheckpointError(f"{place} is a Hugging Face folder: it has no checkpoint {which!r}")
    model, tokenizer, config = load_hf(place)
    rules = json.loads(tokenizer.files.get("generation_config.json", "{}"))
    settings = {"model": asdict(config), "objective": {"kind": "auto"}, "generation": rules}
    return LoadedRun(model.eval(), tokenizer, settings, 0)
