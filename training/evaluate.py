"""Evaluate a run or a Hugging Face folder, on its own validation set or on other data:

python -m training.evaluate --run runs/book data=text data.path=other.txt

A run evaluates itself and samples by the same functions.
"""

import json
import math
import sys
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from importlib import import_module
from itertools import islice
from typing import Any, TextIO

import numpy as np
import torch
from rich.progress import track
from torch import Tensor

from configs.cli import ArgumentParser, expand_user, print, run_command
from configs.compose import compose_node, key_of, to_config
from configs.errors import DataError
from configs.registry import Count, Registry, check_value
from configs.schema import IGNORE_INDEX
from data.corpus import load_data
from data.objectives import Batch
from data.tokenizers.tokenizer import Tokenizer
from model.checkpoint import newest_run, read_state, step_name
from model.generate.beams import beam_search
from model.generate.decode import Rows, generate
from model.generate.options import add_options
from model.pretrained import init_run, init_settings
from training.distributed import start
from training.ema import EMA
from training.finetune import with_model
from training.log import in_words
from training.run import Run, TrainState
from training.step import CPU_TOKENS, LossModule, micro_batches

PROMPT_TOKENS, NEW_TOKENS = 16, 48
Accuracy = Callable[[Run, Batch], tuple[int, int]]  # (number of correct predictions, of all)
DATA = ("data", "objective")
OVERRIDES = (*DATA, "device", "precision", "model.context_length")
OPTIONS = """
--run PATH          run or Hugging Face folder (default: the newest run)
--checkpoint NAME   latest (default), best or a step
--parts PATH        Python file of the parts that it was trained with
--limit N           evaluate N examples, always the same (default: all)
--beams N           exact match by beam search, of an encoder-decoder
--answers PATH      new file: source, target and prediction of each answer as JSON lines
--json              print JSON
"""


def evaluate(
    run: Run,
    limit: int | None = None,
    watch: Callable[..., Iterable[Batch]] = lambda batches, total: batches,
    exact: Accuracy | None = None,
) -> dict[str, float]:
    """Metrics over a fixed subset of `limit` validation examples, or over all of them.
    watch(batches, total) shows how far it is. exact: an exact_match in place of the accuracy that
    the objective has."""
    data, world = run.data, run.world
    split = data.validation

    def batches() -> Iterable[Batch]:
        return watch(split.evaluation(limit), split.n / split.batch_size)

    loss = mean_loss(run, batches())
    metrics = {"val_loss": loss, "val_ppl": math.exp(min(loss, 700))}

    if data.objective.bits_per_byte:
        bits = loss / math.log(2)
        metrics["val_bpb"] = bits * split.part.n_tokens / split.part.n_bytes

    name = "val_exact_match" if exact else data.objective.accuracy
    if name:
        accuracy = exact or ACCURACIES[name]
        # each process has its own batches; but a forward pass of FSDP needs all processes: there
        # each counts all batches, and the ratio is the same
        rank, size = (0, 1) if world.parallel == "fsdp" else world.share
        counts = np.zeros(2)
        with run.evaluating():
            for batch in islice(batches(), rank, None, size):
                counts += accuracy(run, batch)
        correct, total = world.sum(*counts).tolist()
        metrics[name] = correct / total

    for source, ids in split.sources.items():
        metrics[f"val_loss_{source}"] = mean_loss(run, split.evaluation(limit, ids))

    has_other_sources = min(split.n, split.batch_size) > 1
    if run.model.kind == "encoder_decoder" and limit is None and has_other_sources:
        shuffled = map(shuffle_sources, split.evaluation())
        metrics["val_loss_shuffled_source"] = mean_loss(run, shuffled)
    return metrics


def mean_loss(run: Run, batches: Iterable[Batch]) -> float:
    """Per target of batches that the processes share: plain cross-entropy."""
    world = run.world
    losses = []
    count = 0
    with run.evaluating():
        for batch in batches:
            count += batch.count
            share = batch.share(*world.share)
            for micro_batch, _ in micro_batches(share, run.state.micro_batch_size, world.device):
                with world.precision.autocast():
                    losses.append(run.loss_module(*micro_batch)["loss"])
    total = torch.stack(losses).cpu().double().sum()
    return world.sum(total).item() / count


def shuffle_sources(batch: Batch) -> Batch:
    """The sources of a batch in another order: a model that uses them has a higher loss then."""
    inputs = dict(batch.inputs)
    for name in inputs:
        if name.startswith("source"):
            inputs[name] = inputs[name].roll(1, 0)
    return replace(batch, inputs=inputs)


def masked_accuracy(run: Run, batch: Batch) -> tuple[int, int]:
    predicted, targets = predict_masks(run, batch)
    return int((predicted == targets).sum()), batch.count


def predict_masks(run: Run, batch: Batch) -> tuple[Tensor, Tensor]:
    """(the most likely token, the target) of each masked position"""
    batch = batch.to(run.world.device)
    is_target = batch.targets != IGNORE_INDEX
    with run.world.precision.autocast():
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
    correct = 0
    for row in rows:
        correct += decode(row["prediction"]) == decode(row["target"])
        if file:
            texts = {name: tokenizer.decode(ids) for name, ids in row.items()}
            if run.data.objective.input_kind == "chat":  # its turns end with special tokens
                texts["source"] = decode(row["source"])
            file.write(json.dumps(texts) + "\n")
    return correct, len(rows)


ACCURACIES: Registry[Accuracy] = Registry(
    val_accuracy=masked_accuracy,
    val_exact_match=exact_match,
)


def sample(run: Run) -> dict[str, str]:
    """A prediction for the first validation example, {name: text}."""
    batch = next(run.data.validation.evaluation(1))
    with run.evaluating():
        [tokens] = batch.inputs["tokens"].tolist()
        if run.model.kind == "encoder":
            predicted, targets = predict_masks(run, batch)
            row = {"masked": tokens, "target": targets.tolist(), "prediction": predicted.tolist()}
        elif "source" in batch.inputs or run.data.objective.input_kind != "text":
            [row, *_] = predict_targets(run, batch)
        else:
            prompt = tokens[:PROMPT_TOKENS]
            [continuation] = predict(run, [prompt], NEW_TOKENS)
            row = {"prompt": prompt, "continuation": continuation}
    decode = run.data.tokenizer.decode_with_specials
    return {name: decode(ids) for name, ids in row.items()}


def predict_targets(run: Run, batch: Batch, beams: int = 0) -> list[dict[str, Any]]:
    """{source, target, prediction: ids} of each run of targets: a conversation has several."""
    rows = []
    for number, is_target in enumerate((batch.targets != IGNORE_INDEX).numpy()):
        # where a run of targets begins, and where it has ended
        edges = np.flatnonzero(np.diff(is_target, prepend=False, append=False))
        for first, end in edges.reshape(-1, 2):
            source = source_of(batch.inputs, number, first).tolist()
            target = batch.targets[number, first:end].tolist()
            rows.append({"source": source, "target": until_end(target, run.data.tokenizer)})

    sources = [row["source"] for row in rows]
    longest = max(len(row["target"]) for row in rows)
    predictions = predict(run, sources, longest, beams)
    for row, prediction in zip(rows, predictions, strict=True):
        row["prediction"] = prediction
    return rows


def source_of(inputs: dict[str, Tensor], number: int, first: int) -> Tensor:
    """Without padding; of a decoder, all up to what predicts the first target."""
    if "source" not in inputs:
        return inputs["tokens"][number, : first + 1]
    source = inputs["source"][number]
    return source[inputs["source_visible"][number]] if "source_visible" in inputs else source


def until_end(ids: list[int], tokenizer: Tokenizer) -> list[int]:
    """What generation stops at; a chat template may mark white space behind it."""
    stop = set(tokenizer.end_ids)
    ends = [number for number, i in enumerate(ids, 1) if i in stop]
    return ids[: min(ends, default=None)]


def predict(run: Run, sources: Rows, max_new_tokens: int, beams: int = 0) -> Rows:
    """The new ids behind each text of a decoder, or for each source, greedily or by beam search."""
    tokenizer = run.data.tokenizer
    options: Any = {"max_new_tokens": max_new_tokens, "stop": tokenizer.end_ids}
    if beams:
        options |= {"beams": beams, "length_penalty": 1.0}
        search: Any = partial(beam_search, run.model, [[tokenizer.start]], **options)
        return [[step.ids[0] for step in search([source])] for source in sources]
    prompts = sources
    if run.model.kind == "encoder_decoder":
        prompts = [[tokenizer.start]] * len(sources)
        options["sources"] = sources
    steps = generate(run.model, prompts, **options)
    # a step has one for every row, None for a row that has ended
    rows = zip(*steps, strict=True)
    return [[i for i in row if i is not None] for row in rows]


def watch(batches: Iterable[Batch], total: float) -> Iterable[Batch]:
    """A progress bar, on a terminal."""
    is_hidden = not sys.stdout.isatty()
    return track(batches, "evaluating", total, transient=True, disable=is_hidden)


def load(place: str, which: str, overrides: list[str]) -> Run:
    """With the data of these overrides or, without any, with its own."""
    keys = list(map(key_of, overrides))
    for key in keys:
        if not key.startswith(("parts", *OVERRIDES)):
            known = f"its settings are {', '.join(OVERRIDES)}, and --run names a run"
            raise ValueError(f"{key} has no effect on an evaluation: {known}")
    node = with_model(compose_node([f"init_from={place}", *overrides]), keys)
    stored = init_settings(place)
    has_other_data = any(key.startswith(DATA) for key in keys)
    is_imported = stored["tokenizer"]["kind"] == "hub" and not stored.get("init_from")
    is_own = not (is_imported or has_other_data)
    if is_own:
        node.update({name: stored[name] for name in DATA})
    elif "data" not in keys:
        hint = "add data= and its settings, such as data=text data.path=book.txt"
        raise ValueError(f"evaluate {place} on what? {hint}")
    if "train" in stored:  # of a run; a folder has no settings of training
        node.train.update(stored["train"])
        if "precision" not in keys:
            node.precision = stored["precision"]
    config = to_config(node)

    model, tokenizer, step = init_run(place, which)
    # a tokenizer that the run trained itself is in the cache, with the tokens
    is_made = is_own and stored["init_from"] is None
    data = load_data(config, None if is_made else tokenizer)
    checkpoint = expand_user(place) / "checkpoints" / step_name(step)
    if is_own and data.content_hash != read_state(checkpoint)["dataset"]:
        hint = "data=, with its settings, evaluates on the text of today"
        raise DataError(f"the text has changed since {place} was trained on it; {hint}")

    world = start(config)
    module = LossModule(model, config.loss).to(world.device)
    rows = config.train.micro_batch_size
    if rows == "auto":
        rows = CPU_TOKENS // config.model.context_length or 1
    state = TrainState(step, micro_batch_size=rows)
    return Run(config, data, world, module, [], EMA(model, None), state)


def main(args: list[str] | None = None) -> None:
    parser = ArgumentParser("python -m training.evaluate", description=__doc__)
    add_options(parser, OPTIONS)
    help = f"settings as of train.py, among {', '.join(OVERRIDES)} (default: those of the run)"
    parser.add_argument("overrides", nargs="*", metavar="key=value", help=help)
    options = parser.parse_intermixed_args(args)
    for name in ("limit", "beams"):
        check_value(f"--{name}", vars(options)[name], Count | None)
    if options.parts:
        options.overrides.append(f"parts={options.parts}")
    if options.answers and options.answers.exists():
        raise ValueError(f"{options.answers} already exists; choose another file")
    place = str(options.run or newest_run())
    run = load(place, options.checkpoint or "latest", options.overrides)

    generates = options.beams or options.answers
    if generates and run.data.objective.input_kind == "text":
        raise ValueError("--beams and --answers are for answers, of pairs and conversations")
    if options.beams and run.model.kind != "encoder_decoder":
        raise ValueError(f"--beams needs an encoder_decoder; this model is a {run.model.kind}")
    with options.answers.open("x") if options.answers else nullcontext() as file:
        exact = partial(exact_match, beams=options.beams or 0, file=file) if generates else None
        metrics = evaluate(run, options.limit, watch, exact)

    step = run.state.step
    n = min(run.data.validation.n, options.limit or math.inf)
    if options.json:
        row = {"run": place, "step": step, "examples": n}
        print(json.dumps(row | metrics))
    else:
        print(f"{place}, step {step:,}: {in_words(metrics)} ({n:,} examples)")


if __name__ == "__main__":  # a second copy of this file; your parts add to ACCURACIES of the first
    sys.exit(run_command(import_module("training.evaluate").main))
