"""Showing: what a model says of texts it has not learned: a continuation, an answer, a guess."""

import torch

from data.batch import IGNORE
from model.generate import generate
from training.signals import polled

LENGTH = 48  # new tokens of a continuation
PROMPT = 16


def example(run):
    """The first row of validation, in the way of the run's objective."""
    batch = next(run.streams.validation.evaluation(1))
    model, tokenizer = run.model.eval(), run.streams.tokenizer
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
        dict(prompt=tokenizer.show(prompt), continuation=tokenizer.show(text))
        for prompt, text in zip(prompts, said, strict=True)
    ]


def said_by(model, prompts, length, tokenizer, sources=None):
    steps = generate(model, prompts, max_new_tokens=length, sources=sources, stop=tokenizer.specials["end"])
    texts = [[] for _ in prompts]
    for ids in polled(steps):
        for text, i in zip(texts, ids, strict=True):
            if i is not None:
                text.append(i)
    return texts


def answers(model, tokenizer, batch):
    """Each source, the target, and what the model makes of the source."""
    targets = [[i for i in row if i != IGNORE] for row in batch.targets.tolist()]
    longest = max(map(len, targets))
    if "source" in batch.inputs:
        visible = batch.inputs.get(
            "source_visible", torch.ones_like(batch.inputs["source"], dtype=torch.bool)
        )
        sources = [row[keep].tolist() for row, keep in zip(batch.inputs["source"], visible, strict=True)]
        prompts = [[tokenizer.specials["start"]] for _ in sources]
        said = said_by(model, prompts, longest, tokenizer, sources)
    else:
        firsts = [int((row != IGNORE).nonzero()[0]) for row in batch.targets]
        sources = [row[: n + 1].tolist() for row, n in zip(batch.inputs["tokens"], firsts, strict=True)]
        said = said_by(model, sources, longest, tokenizer)
    return [
        dict(source=tokenizer.show(s), target=tokenizer.show(t), prediction=tokenizer.show(p))
        for s, t, p in zip(sources, targets, said, strict=True)
    ]


@torch.no_grad()
def guesses(model, tokenizer, batch, precision):
    """A text with its masks filled in by the likeliest tokens."""
    batch = batch.to(precision.device)
    likeliest = model(**batch.inputs).argmax(-1)
    asked = batch.targets != IGNORE
    return [
        dict(
            masked=tokenizer.show(tokens.tolist()),
            target=tokenizer.show(t[a].tolist()),
            guess=tokenizer.show(best[a].tolist()),
        )
        for tokens, t, best, a in zip(batch.inputs["tokens"], batch.targets, likeliest, asked, strict=True)
    ]
