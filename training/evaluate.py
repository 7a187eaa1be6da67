"""Showing: what a model says of texts it has not learned: a continuation, an answer, a guess."""

import math

import torch

from data.objectives import IGNORE_INDEX
from model.generate.decode import generate
from training.distributed import stoppable
from training.step import LossModule, evaluate

LENGTH = 48  # new tokens of a continuation
PROMPT = 16


def sample_validation(run):
    """The first row of validation, in the way of the run's objective."""
    batch = next(run.loaders.validation.evaluation(1))
    model, tokenizer = run.model.eval(), run.loaders.tokenizer
    try:
        if run.config.model.kind == "encoder":
            return guesses(model, tokenizer, batch, run.precision)[0]
        if "source" in batch.inputs or run.config.objective["kind"] == "pairs":
            return answers(model, tokenizer, batch)[0]
        return continuations(model, tokenizer, batch)[0]
    finally:
        model.train()


def continuations(model, tokenizer, batch):
    prompts = batch.inputs["tokens"][:, :PROMPT].tolist()
    said = said_by(model, prompts, LENGTH, tokenizer)
    return [
        dict(prompt=tokenizer.decode_with_specials(prompt), continuation=tokenizer.decode_with_specials(text))
        for prompt, text in zip(prompts, said, strict=True)
    ]


def said_by(model, prompts, length, tokenizer, sources=None):
    steps = generate(model, prompts, max_new_tokens=length, sources=sources, stop=tokenizer.specials["end"])
    texts = [[] for _ in prompts]
    for ids in stoppable(steps):
        for text, i in zip(texts, ids, strict=True):
            if i is not None:
                text.append(i)
    return texts


def answers(model, tokenizer, batch):
    """Each source, the target, and what the model makes of the source."""
    targets = [[i for i in row if i != IGNORE_INDEX] for row in batch.targets.tolist()]
    longest = max(map(len, targets))
    if "source" in batch.inputs:
        visible = batch.inputs.get(
            "source_visible", torch.ones_like(batch.inputs["source"], dtype=torch.bool)
        )
        sources = [row[keep].tolist() for row, keep in zip(batch.inputs["source"], visible, strict=True)]
        prompts = [[tokenizer.specials["start"]] for _ in sources]
        said = said_by(model, prompts, longest, tokenizer, sources)
    else:
        firsts = [int((row != IGNORE_INDEX).nonzero()[0]) for row in batch.targets]
        sources = [row[: n + 1].tolist() for row, n in zip(batch.inputs["tokens"], firsts, strict=True)]
        said = said_by(model, sources, longest, tokenizer)
    return [
        dict(
            source=tokenizer.decode_with_specials(s),
            target=tokenizer.decode_with_specials(t),
            prediction=tokenizer.decode_with_specials(p),
        )
        for s, t, p in zip(sources, targets, said, strict=True)
    ]


@torch.no_grad()
def guesses(model, tokenizer, batch, precision):
    """A text with its masks filled in by the likeliest tokens."""
    batch = batch.to(precision.device)
    likeliest = model(**batch.inputs).argmax(-1)
    asked = batch.targets != IGNORE_INDEX
    return [
        dict(
            masked=tokenizer.decode_with_specials(tokens.tolist()),
            target=tokenizer.decode_with_specials(t[a].tolist()),
            guess=tokenizer.decode_with_specials(best[a].tolist()),
        )
        for tokens, t, best, a in zip(batch.inputs["tokens"], batch.targets, likeliest, asked, strict=True)
    ]


def evaluate_run(run, limit=None):
    """The loss over so many windows or pairs, always the same ones; all of them where there is no limit."""

    def batches():
        return stoppable(run.loaders.validation.evaluation(limit, *run.dist))

    def loss(of):
        return evaluate(LossModule(run.model), of, run.precision, run.dist)

    kind = run.config.objective["kind"]
    found = dict(zip(("val_loss", "val_tokens"), loss(batches()), strict=True))
    if kind == "next_token":
        part = run.loaders.validation.part
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
    n_right, n = run.dist.all_reduce_sum(n_right, n, device=run.precision.device)
    return n_right / n


@torch.no_grad()
def guessed(run, batch):
    """Of the masked tokens."""
    batch = batch.to(run.precision.device)
    asked = batch.targets != IGNORE_INDEX
    with run.precision.autocast():
        likeliest = run.model.head(run.model.hidden(**batch.inputs)[asked]).argmax(-1)
    return int((likeliest == batch.targets[asked]).sum()), batch.count


def answered(run, batch):
    """Of the answers, to the letter."""
    shown = answers(run.model, run.loaders.tokenizer, batch)
    return sum(answer["prediction"] == answer["target"] for answer in shown), len(shown)


def with_other_sources(batch):
    """Each row with the source of the row before it."""
    sources = {name: x.roll(1, 0) for name, x in batch.inputs.items() if name.startswith("source")}
    return batch._replace(inputs=batch.inputs | sources)
