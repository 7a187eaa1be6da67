"""Evaluation: losses and accuracies on the validation set, and samples of what the model predicts there."""

import math
from contextlib import contextmanager

import torch

from configs.schema import IGNORE_INDEX
from model.generate.decode import generate
from training.distributed import stoppable

PROMPT_TOKENS, NEW_TOKENS = 16, 48


def evaluate_run(run, limit=None):
    """Metrics over a fixed subset of `limit` validation examples, or over all of them."""

    def batches(rank=0, world_size=1):
        return stoppable(run.loaders.validation.evaluation(limit, rank, world_size))

    objective, tokens = run.config.objective["kind"], run.loaders.validation.part
    loss, n_tokens = run.train_step.evaluate(batches())
    metrics = {"val_loss": loss, "val_tokens": n_tokens}
    if objective == "next_token":
        metrics["val_bpb"] = loss / math.log(2) * tokens.n_tokens / tokens.n_bytes
    if objective in ACCURACIES:
        name, count_correct = ACCURACIES[objective]
        share = (
            (0, 1) if run.dist.parallel == "fsdp" else run.dist.share
        )  # forward passes in step, or not
        with evaluating(run):
            counts = [count_correct(run, batch) for batch in batches(*share)]
        totals = map(sum, zip((0, 0), *counts, strict=True))
        correct, n = run.dist.all_reduce_sum(*totals, device=run.precision.device)
        metrics[name] = correct / n
    rows = min(run.config.train.batch_size, run.loaders.validation.n)
    if run.config.model.kind == "encoder_decoder" and limit is None and rows > 1:
        # a model that ignores its source loses nothing when each row gets that of another
        shuffled = (
            b._replace(
                inputs={
                    k: x.roll(1, 0) if k.startswith("source") else x for k, x in b.inputs.items()
                }
            )
            for b in batches()
            if len(b.targets) > 1
        )
        metrics["val_loss_shuffled_source"], _ = run.train_step.evaluate(shuffled)
    return metrics


@contextmanager
def evaluating(run):
    """The model without dropout, and with whole weights, for other calls than a training step makes."""
    run.model.eval()
    if sharded := run.dist.parallel == "fsdp":
        run.train_step.loss_module.unshard()
    yield
    if sharded:
        run.train_step.loss_module.reshard()
    run.model.train()


@torch.no_grad()
def masked_accuracy(run, batch):
    """(number of correct predictions, number of predictions)"""
    batch = batch.to(run.precision.device)
    is_target = batch.targets != IGNORE_INDEX
    with run.precision.autocast():
        predicted = run.model.head(run.model.hidden(**batch.inputs)[is_target]).argmax(-1)
    return int((predicted == batch.targets[is_target]).sum()), batch.count


def exact_match(run, batch):
    samples = predict_targets(run.model, run.loaders.tokenizer, batch)
    return sum(sample["prediction"] == sample["target"] for sample in samples), len(samples)


ACCURACIES = {
    "masked": ("val_accuracy", masked_accuracy),
    "pairs": ("val_exact_match", exact_match),
}


@torch.no_grad()
def sample_validation(run):
    """A prediction for the first validation example, {name: text}."""
    batch = next(run.loaders.validation.evaluation(1))
    model, tokenizer = run.model, run.loaders.tokenizer
    with evaluating(run):
        if "source" in batch.inputs or run.config.objective["kind"] == "pairs":
            return predict_targets(model, tokenizer, batch)[0]
        if run.config.model.kind == "encoder":
            batch = batch.to(run.precision.device)
            is_target = batch.targets[0] != IGNORE_INDEX
            target, predicted = (
                batch.targets[0][is_target],
                model(**batch.inputs)[0].argmax(-1)[is_target],
            )
            ids = {"masked": batch.inputs["tokens"][0], "target": target, "prediction": predicted}
            ids = {name: tensor.tolist() for name, tensor in ids.items()}
        else:
            [prompt] = batch.inputs["tokens"][:, :PROMPT_TOKENS].tolist()
            [continuation] = generate_ids(model, tokenizer, [prompt], NEW_TOKENS)
            ids = {"prompt": prompt, "continuation": continuation}
        return {name: tokenizer.decode_with_specials(tokens) for name, tokens in ids.items()}


def predict_targets(model, tokenizer, batch):
    """Each source with its target and the model's greedy prediction."""
    targets = [[i for i in row if i != IGNORE_INDEX] for row in batch.targets.tolist()]
    longest = max(map(len, targets))
    if "source" in batch.inputs:
        source = batch.inputs["source"]
        visible = batch.inputs.get("source_visible", torch.ones_like(source, dtype=torch.bool))
        sources = [row[keep].tolist() for row, keep in zip(source, visible, strict=True)]
        starts = [[tokenizer.specials["start"]] for _ in sources]
        predictions = generate_ids(model, tokenizer, starts, longest, sources)
    else:
        firsts = [int((row != IGNORE_INDEX).nonzero()[0]) for row in batch.targets]
        sources = [
            row[: n + 1].tolist() for row, n in zip(batch.inputs["tokens"], firsts, strict=True)
        ]
        predictions = generate_ids(model, tokenizer, sources, longest)
    texts = (map(tokenizer.decode_with_specials, ids) for ids in (sources, targets, predictions))
    return [{"source": s, "target": t, "prediction": p} for s, t, p in zip(*texts, strict=True)]


def generate_ids(model, tokenizer, prompts, max_new_tokens, sources=None):
    rows, options = (
        [[] for _ in prompts],
        {"max_new_tokens": max_new_tokens, "stop": tokenizer.end_ids},
    )
    for ids in stoppable(generate(model, prompts, sources=sources, **options)):
        for row, i in zip(rows, ids, strict=True):
            if i is not None:
                row.append(i)
    return rows
