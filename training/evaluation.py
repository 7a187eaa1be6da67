"""The evaluation of a run, by train.py and by the command in evaluate.py: its loss on the
validation set, the accuracy of its predictions, and a sample."""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator

import torch
from rich.progress import Progress

from configs.errors import StopRequested
from data.batch import Batch
from training.distributed import received_signals
from training.predictions import ACCURACIES, Accuracy, measure_accuracy, predict, predict_example
from training.run import Run
from training.step import micro_batches

# of a sample, in tokens
N_PROMPT = 16
N_NEW = 48


def evaluate(
    run: Run,
    limit: int | None = None,
    bar: Progress | None = None,
    exact: Accuracy | None = None,
) -> dict:
    """Metrics over a fixed subset of `limit` validation examples, or over all of them; only the
    latter have a confusion matrix. bar: shows the progress of a long evaluation, which a signal
    stops. exact: an exact_match that replaces the accuracy of the objective."""
    data = run.data
    loader = data.validation

    def batches() -> Iterator[Batch]:
        found: Iterable[Batch] = loader.evaluation(limit)
        if bar:
            found = bar.track(
                found,
                min(limit or loader.n, loader.n) / loader.batch_size,
                description="evaluating",
            )
        for batch in found:
            # several processes would not all stop at the same batch
            if bar and received_signals and run.world.size == 1:
                raise StopRequested
            yield batch

    metrics = mean_losses(run, batches())
    loss = metrics["val_loss"]
    if not math.isfinite(loss):
        reason = f"step {run.state.step}: the validation loss is not finite ({loss})"
        raise FloatingPointError(f"{reason}; try a lower optimizer.lr")

    is_cross_entropy = not hasattr(run.model, "loss")
    if is_cross_entropy:
        metrics["val_ppl"] = math.exp(min(loss, 700))

    if is_cross_entropy and data.objective.bits_per_byte:
        bits = loss / math.log(2)
        metrics["val_bpb"] = bits * loader.file.n_tokens / loader.file.n_bytes

    name = "val_exact_match" if exact else data.objective.accuracy
    if name:
        metrics |= measure_accuracy(run, batches(), name, exact or ACCURACIES[name])
    if limit:
        metrics.pop("confusion", None)
    return metrics


def mean_losses(run: Run, batches: Iterable[Batch]) -> dict[str, float]:
    """The main loss of LossModule per target: val_loss, and val_loss_NAME of each source of a mix.
    The processes share the batches."""
    world = run.world
    losses = defaultdict(list)  # by source
    counts: Counter[str] = Counter()

    with run.evaluating():
        for batch in batches:
            counts[batch.source] += batch.count
            if world.size > 1:
                batch = batch.share(world.rank, world.size)
            for micro_batch, _ in micro_batches(batch, run.state.micro_batch_size, world.device):
                losses[batch.source].append(run.loss_module(*micro_batch)["loss"])

    sums = {
        name: world.sum(torch.stack(terms).cpu().double().sum()).item()
        for name, terms in losses.items()
    }
    means = {f"val_loss_{name}": sums[name] / counts[name] for name in sums if name}
    return {"val_loss": sum(sums.values()) / counts.total()} | means


def sample(run: Run) -> dict[str, str]:
    """A prediction for one fixed validation example, {name: text}."""
    batch = next(run.data.validation.evaluation(1))
    with run.evaluating():
        if run.model.kind != "decoder" or run.data.objective.input_kind != "text":
            row = predict_example(run, batch)
        else:
            prompt = batch.inputs["tokens"][0, :N_PROMPT].tolist()
            row = {"prompt": prompt, "continuation": continuation(run, prompt)}
    to_text = run.data.tokenizer.decode_with_specials
    return {name: ids if isinstance(ids, str) else to_text(ids) for name, ids in row.items()}


def continuation(run: Run, prompt: list[int]) -> list[int]:
    """The likeliest next token, again and again. Each pass reads the newest tokens that fit, as in
    training. sample.py keeps keys and values instead (model/generate/decode.py): up to rounding,
    the result is the same until the context is full."""
    model = run.model
    if hasattr(model, "generate"):  # of a custom architecture
        return predict(run, [prompt], N_NEW)[0]

    ids = list(prompt)
    for _ in range(N_NEW):
        newest = torch.tensor([ids[-model.context_length :]], device=run.world.device)
        logits_V = model.head(model.hidden(newest)[0, -1])
        ids.append(int(logits_V.argmax()))
        if ids[-1] in run.data.tokenizer.end_ids:
            break
    return ids[len(prompt) :]
