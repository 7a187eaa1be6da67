"""Validation: how well a model does on what it has not learned from, in the terms of its objective."""

import math

import torch

from data.batch import IGNORE
from training.showing import answers
from training.signals import polled
from training.step import Asked, evaluate


def judged(run, limit=None):
    """The loss over so many windows or pairs, always the same ones; all of them where there is no limit."""

    def batches():
        return polled(run.streams.validation.evaluation(limit, *run.ranks))

    def loss(of):
        return evaluate(Asked(run.model), of, run.precision, run.ranks)

    kind = run.config.objective["kind"]
    found = dict(zip(("val_loss", "val_tokens"), loss(batches()), strict=True))
    if kind == "next_token":
        part = run.streams.validation.part
        found["val_bpb"] = found["val_loss"] / math.log(2) * part.n_tokens / part.n_bytes
    if kind == "masked":
        found["val_accuracy"] = share(run, batches(), guessed)
    if kind == "pairs":
        found["val_exact"] = share(run, batches(), answered)
    if run.config.model.kind == "encoder_decoder" and limit is None and run.config.train.batch_size > 1:
        # a model that does not look at its source loses nothing when it gets another's
        together = (batch for batch in batches() if len(batch.targets) > 1)
        found["val_loss_other_source"] = loss(map(with_other_sources, together))[0]
    return found


def share(run, batches, right):
    """The share of what is asked that is right: right(run, batch) -> (how many are, of how many)."""
    run.model.eval()
    counts = [right(run, batch) for batch in batches]
    run.model.train()
    n_right, n = sum(n for n, _ in counts), sum(n for _, n in counts)
    n_right, n = run.ranks.sum(n_right, n, device=run.precision.device)
    return n_right / n


@torch.no_grad()
def guessed(run, batch):
    """Of the masked tokens."""
    batch = batch.to(run.precision.device)
    asked = batch.targets != IGNORE
    with run.precision.autocast():
        likeliest = run.model.head(run.model.hidden(**batch.inputs)[asked]).argmax(-1)
    return int((likeliest == batch.targets[asked]).sum()), batch.count


def answered(run, batch):
    """Of the answers, to the letter."""
    shown = answers(run.model, run.streams.tokenizer, batch)
    return sum(answer["prediction"] == answer["target"] for answer in shown), len(shown)


def with_other_sources(batch):
    """Each row with the source of the row before it."""
    sources = {name: x.roll(1, 0) for name, x in batch.inputs.items() if name.startswith("source")}
    return batch._replace(inputs=batch.inputs | sources)
