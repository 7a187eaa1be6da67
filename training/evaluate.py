"""Evaluation: losses and accuracies on the validation set, and samples of what the model predicts there."""

import math

import torch

from configs.schema import IGNORE_INDEX
from model.generate.decode import generate
from training.distributed import stoppable

PROMPT_TOKENS = 16
NEW_TOKENS = 48


def evaluate_run(run, limit=None):
    """Metrics over a fixed subset of `limit` validation examples, or over all of them."""

    def batches():
        return stoppable(run.loaders.validation.evaluation(limit, *run.dist))

    def accuracy(count_correct):
        """count_correct(run, batch) is (the number of correct predictions, the number of predictions)."""
        run.model.eval()
        counts = [count_correct(run, batch) for batch in batches()]
        run.model.train()
        totals = sum(correct for correct, _ in counts), sum(n for _, n in counts)
        correct, n = run.dist.all_reduce_sum(*totals, device=run.precision.device)
        return correct / n

    objective, tokens = run.config.objective["kind"], run.loaders.validation.part
    loss, n_tokens = run.train_step.evaluate(batches())
    metrics = {"val_loss": loss, "val_tokens": n_tokens}
    if objective == "next_token":
        metrics["val_bpb"] = loss / math.log(2) * tokens.n_tokens / tokens.n_bytes
    if objective == "masked":
        metrics["val_accuracy"] = accuracy(masked_accuracy)
    if objective == "pairs":
        metrics["val_exact_match"] = accuracy(exact_match)
    if run.config.model.kind == "encoder_decoder" and limit is None and run.config.train.batch_size > 1:
        # a model that ignores its source loses nothing when it gets another one
        several = (batch for batch in batches() if len(batch.targets) > 1)
        metrics["val_loss_shuffled_source"], _ = run.train_step.evaluate(map(shuffle_sources, several))
    return metrics


@torch.no_grad()
def masked_accuracy(run, batch):
    batch = batch.to(run.precision.device)
    is_target = batch.targets != IGNORE_INDEX
    with run.precision.autocast():
        predicted = run.model.head(run.model.hidden(**batch.inputs)[is_target]).argmax(-1)
    return int((predicted == batch.targets[is_target]).sum()), batch.count


def exact_match(run, batch):
    samples = predict_targets(run.model, run.loaders.tokenizer, batch)
    return sum(sample["prediction"] == sample["target"] for sample in samples), len(samples)


def shuffle_sources(batch):
    """Each row gets the source of the row before."""
    sources = {name: x.roll(1, 0) for name, x in batch.inputs.items() if name.startswith("source")}
    return batch._replace(inputs=batch.inputs | sources)


@torch.no_grad()
def sample_validation(run):
    """A prediction for the first validation example, {name: text}."""
    batch = next(run.loaders.validation.evaluation(1))
    model, tokenizer = run.model.eval(), run.loaders.tokenizer
    try:
        if "source" in batch.inputs or run.config.objective["kind"] == "pairs":
            return predict_targets(model, tokenizer, batch)[0]
        if run.config.model.kind == "encoder":
            batch = batch.to(run.precision.device)
            is_target = batch.targets[0] != IGNORE_INDEX
            target, predicted = batch.targets[0][is_target], model(**batch.inputs)[0].argmax(-1)[is_target]
            ids = {"masked": batch.inputs["tokens"][0], "target": target, "prediction": predicted}
            ids = {name: tensor.tolist() for name, tensor in ids.items()}
        else:
            [prompt] = batch.inputs["tokens"][:, :PROMPT_TOKENS].tolist()
            [continuation] = generate_ids(model, tokenizer, [prompt], NEW_TOKENS)
            ids = {"prompt": prompt, "continuation": continuation}
        return {name: tokenizer.decode_with_specials(tokens) for name, tokens in ids.items()}
    finally:
        model.train()


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
        sources = [row[: n + 1].tolist() for row, n in zip(batch.inputs["tokens"], firsts, strict=True)]
        predictions = generate_ids(model, tokenizer, sources, longest)
    return [
        dict(zip(("source", "target", "prediction"), map(tokenizer.decode_with_specials, ids), strict=True))
        for ids in zip(sources, targets, predictions, strict=True)
    ]


def generate_ids(model, tokenizer, prompts, max_new_tokens, sources=None):
    end, rows = tokenizer.specials["end"], [[] for _ in prompts]
    for ids in stoppable(generate(model, prompts, max_new_tokens=max_new_tokens, sources=sources, stop=end)):
        for row, i in zip(rows, ids, strict=True):
            if i is not None:
                row.append(i)
    return rows
