"""Card: the README.md of an export, which says what the model is and how it was trained."""

from pathlib import Path

from model.checkpoint import LoadedRun
from model.runs import read_rows
from model.weights import count_parameters


def model_card(run: Path, loaded: LoadedRun) -> str:
    model, tokenizer, settings, step = loaded
    data = settings["choices"].get("data", "unknown")
    if settings["choices"]:  # it was trained by a command
        origin = " ".join(["python train.py", *settings["overrides"]])
    else:  # the program that trained it, or imported from ...
        *_, origin = (run / "environment.txt").read_text(encoding="utf-8").splitlines()

    metrics = "not measured"
    for row in read_rows(run / "metrics.jsonl"):  # an imported run has none
        if row.get("step") == step and "val_loss" in row:
            metrics = ", ".join(f"{name} {row[name]:.6g}" for name in row if "val" in name)

    return f"""---
library_name: transformers
---

# {run.resolve().name}

    {origin}

- {count_parameters(model.requires_grad_())}, a context of {settings["model"]["context_length"]} tokens
- tokenizer: {tokenizer.kind}, {tokenizer.vocab_size} tokens
- data: {data}
- step {step}: {metrics}

License: none is stated. State one that the data, and any model that this one continues, allow.
"""
