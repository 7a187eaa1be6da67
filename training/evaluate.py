"""Evaluation: losses and accuracies on the validation set, and samples of what the model predicts
there. Of a run or of a Hugging Face folder, on its own or on other data:

python -m training.evaluate --run runs/book data=text data.path=other.txt
"""

import json
import math
import re
import sys
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from functools import partial
from importlib import import_module
from itertools import islice
from typing import Any, TextIO

import numpy as np
import torch
from rich.progress import track
from torch import Tensor, nn

from configs.cli import ArgumentParser, expand_user, print, run_command
from configs.compose import compose_node, key_of, to_config
from configs.errors import DataError
from configs.parts import load_parts
from configs.registry import Count, Registry, check_value
from configs.schema import IGNORE_INDEX
from data.corpus import load_data
from data.objectives import Batch
from data.tokenizers.tokenizer import Tokenizer
from model.checkpoint import init_config, init_run, newest_run, read_state, step_name
from model.generate.beams import beam_search
from model.generate.decode import Rows, generate
from model.generate.options import SETTINGS
from model.precision import choose_device, choose_precision
from training.checkpointer import TrainState
from training.distributed import World
from training.ema import EMA
from training.finetune import with_model
from training.log import in_words
from training.run import Run
from training.step import CPU_TOKENS, LossModule, fit_micro_batch, micro_batches

PROMPT_TOKENS, NEW_TOKENS = 16, 48
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
    watch: Callable[..., Iterable[Batch]] | None = None,
    accuracy: str | None = None,
    **options: Any,
) -> dict[str, float]:
    """Metrics over a fixed subset of `limit` validation examples, or over all of them.
    watch(batches, total) shows how far it is; the options are those of the accuracy, which is the
    objective's unless it is named."""
    data, world = run.data, run.world
    split = data.validation

    def batches(rank: int = 0, size: int = 1) -> Iterable[Batch]:
        part = islice(split.evaluation(limit), rank, None, size)
        return watch(part, split.n / split.batch_size / size) if watch else part

    loss = mean_loss(run, batches())
    metrics = {"val_loss": loss, "val_ppl": math.exp(min(loss, 700))}

    if data.objective.bits_per_byte:
        metrics["val_bpb"] = loss / math.log(2) * split.part.n_tokens / split.part.n_bytes

    if name := accuracy or data.objective.accuracy:
        count_correct = partial(ACCURACIES[name], **options)
        # the loss shares the rows of a batch; here processes share the batches. With FSDP each
        # forward pass needs all processes: all count all batches, which leaves the ratio as it is
        share = (0, 1) if world.parallel == "fsdp" else world.share
        n_correct = 0
        n_predicted = 0
        with run.evaluating():
            for batch in batches(*share):
                correct, predicted = count_correct(run.model, data.tokenizer, batch, world)
                n_correct += correct
                n_predicted += predicted
        n_correct, n_predicted = world.sum(n_correct, n_predicted).tolist()
        metrics[name] = n_correct / n_predicted

    for source in split.weights:
        metrics[f"val_loss_{source}"] = mean_loss(run, split.evaluation(limit, source))

    if run.model.kind == "encoder_decoder" and limit is None and min(split.n, split.batch_size) > 1:
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
            share = batch.share(*world.share)
            for micro_batch, _ in micro_batches(share, run.state.micro_batch_size, world.device):
                with world.precision.autocast():
                    losses.append(run.loss_module(*micro_batch)["loss"])
                count += micro_batch.count
    total, count = world.sum(torch.stack(losses).cpu().double().sum(), count).tolist()
    return total / count


def shuffle_sources(batch: Batch) -> Batch:
    """The sources of a batch in another order: a model that uses them has a higher loss then."""
    inputs = {
        name: tensor.roll(1, 0) if name.startswith("source") else tensor
        for name, tensor in batch.inputs.items()
    }
    return batch._replace(inputs=inputs)


def masked_accuracy(
    model: Any, tokenizer: Tokenizer, batch: Batch, world: World
) -> tuple[int, int]:
    """(number of correct predictions, number of predictions)"""
    predicted, targets = predict_masks(model, batch, world)
    return int((predicted == targets).sum()), batch.count


def predict_masks(model: Any, batch: Batch, world: World) -> tuple[Tensor, Tensor]:
    """(the most likely token, the target) of each masked position"""
    batch = batch.to(world.device)
    is_target = batch.targets != IGNORE_INDEX
    with world.precision.autocast():
        logits = model.head(model.hidden(**batch.inputs)[is_target])
    return logits.argmax(-1), batch.targets[is_target]


def exact_match(
    model: nn.Module,
    tokenizer: Tokenizer,
    batch: Batch,
    world: World,
    beams: int | None = None,
    file: TextIO | None = None,
) -> tuple[int, int]:
    """Each answer is also a line of the file."""
    rows = predict_targets(model, tokenizer, batch, beams)
    if file:
        for row in rows:
            texts = {name: tokenizer.decode(ids) for name, ids in row.items()}
            file.write(json.dumps(texts) + "\n")
    decode = tokenizer.decode_with_specials
    return sum(decode(row["prediction"]) == decode(row["target"]) for row in rows), len(rows)


ACCURACIES: Registry[Callable[..., tuple[int, int]]] = Registry(
    val_accuracy=masked_accuracy,
    val_exact_match=exact_match,
)


def sample(run: Run) -> dict[str, str]:
    """A prediction for the first validation example, {name: text}."""
    model = run.model
    batch = next(run.data.validation.evaluation(1))
    tokenizer = run.data.tokenizer

    with run.evaluating():
        [tokens] = batch.inputs["tokens"].tolist()
        if "source" in batch.inputs or run.data.objective.input_kind != "text":
            [row, *_] = predict_targets(model, tokenizer, batch)
        elif model.kind == "encoder":
            predicted, targets = predict_masks(model, batch, run.world)
            row = {"masked": tokens, "target": targets.tolist(), "prediction": predicted.tolist()}
        else:
            prompt = tokens[:PROMPT_TOKENS]
            [continuation] = predict(model, tokenizer, [prompt], NEW_TOKENS)
            row = {"prompt": prompt, "continuation": continuation}
    return {name: tokenizer.decode_with_specials(ids) for name, ids in row.items()}


def predict_targets(
    model: nn.Module, tokenizer: Tokenizer, batch: Batch, beams: int | None = None
) -> list[dict[str, list[int]]]:
    """The source, the target and the model's prediction of each answer: of targets that follow one
    another, in a row that may have several."""
    tokens = batch.inputs["tokens"].tolist()
    sources = visible_sources(batch)
    rows = []
    prompts = []
    for number, is_target in enumerate((batch.targets != IGNORE_INDEX).numpy()):
        edges = np.flatnonzero(np.diff(is_target, prepend=False, append=False))
        for first, end in edges.reshape(-1, 2):
            prompt = tokens[number][: first + 1]  # up to what predicts the first target
            source = sources[number] if sources else prompt
            target = batch.targets[number, first:end].tolist()
            rows.append({"source": source, "target": until_end(target, tokenizer)})
            prompts.append(prompt)

    longest = max(len(row["target"]) for row in rows)
    given = [row["source"] for row in rows] if sources else None
    predictions = predict(model, tokenizer, prompts, longest, given, beams)
    for row, prediction in zip(rows, predictions, strict=True):
        row["prediction"] = prediction
    return rows


def until_end(ids: list[int], tokenizer: Tokenizer) -> list[int]:
    """What generation stops at; a chat template may mark white space behind it."""
    ends = [number for number, i in enumerate(ids, 1) if i in tokenizer.end_ids]
    return ids[: ends[0]] if ends else ids


def visible_sources(batch: Batch) -> Rows:
    """The ids of each source, without padding; nothing of a decoder."""
    if "source" not in batch.inputs:
        return []
    source = batch.inputs["source"]
    visible = batch.inputs.get("source_visible", torch.ones_like(source, dtype=torch.bool))
    return [row[mask].tolist() for row, mask in zip(source, visible, strict=True)]


def predict(
    model: nn.Module,
    tokenizer: Tokenizer,
    prompts: Rows,
    max_new_tokens: int,
    sources: Rows | None = None,
    beams: int | None = None,
) -> Rows:
    """The new ids of each prompt, greedily or by beam search. A step has one for every row, None
    for a row that has ended."""
    options: Any = {"max_new_tokens": max_new_tokens, "stop": tokenizer.end_ids}
    if beams is None:
        steps = generate(model, prompts, sources=sources, **options)
        return [[i for i in row if i is not None] for row in zip(*steps, strict=True)]
    search: Any = partial(beam_search, model, beams=beams, length_penalty=1.0, **options)
    found = [search([prompt], [s]) for prompt, s in zip(prompts, sources or (), strict=True)]
    return [[step.ids[0] for step in steps] for steps in found]


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
    config = to_config(with_model(compose_node([f"init_from={place}", *overrides]), keys))
    stored = init_config(place)
    is_own = bool(stored.get("choices")) and not any(key.startswith(DATA) for key in keys)
    if not is_own and "data" not in keys:
        hint = "add data= and its settings, such as data=text data.path=book.txt"
        raise ValueError(f"evaluate {place} on what? {hint}")
    if is_own:
        config.data, config.objective = (stored[name] for name in DATA)
    if "train" in stored:
        for name in ("batch_size", "micro_batch_size"):
            setattr(config.train, name, stored["train"][name])
        if "precision" not in keys:
            config.precision = stored["precision"]

    model, tokenizer, _, step = init_run(place, which)
    is_made = is_own and stored["init_from"] is None  # the tokenizer, for this data
    data = load_data(config, None if is_made else tokenizer)
    checkpoint = expand_user(place) / "checkpoints" / step_name(step)
    if is_own and data.content_hash != read_state(checkpoint)["dataset"]:
        hint = "data=, with its settings, evaluates on the text of today"
        raise DataError(f"the text has changed since {place} was trained on it; {hint}")

    precision = choose_precision(choose_device(config.device), config.precision)
    world = World(0, 1, "none", precision, precision.scaler())
    module = LossModule(model, config.loss).to(world.device)
    rows = CPU_TOKENS // config.model.context_length or 1
    size = fit_micro_batch(module, data.train, config, world, rows)
    state = TrainState(step, micro_batch_size=size)
    return Run(config, data, world, module, [], EMA(model, None), state)


def main(args: list[str] | None = None) -> None:
    about = "Evaluate a run or a Hugging Face folder, on its own validation set or on other data."
    parser = ArgumentParser("python -m training.evaluate", description=about)
    for flag, metavar, text in re.findall(r"(--\S+) ([A-Z]*) +(.+)", OPTIONS):
        parser.add_argument(flag, help=text, **SETTINGS[metavar])
    help = f"settings as of train.py, among {', '.join(OVERRIDES)} (default: those of the run)"
    parser.add_argument("overrides", nargs="*", metavar="key=value", help=help)
    options = parser.parse_intermixed_args(args)
    for name in ("limit", "beams"):
        check_value(f"--{name}", vars(options)[name], Count | None)
    load_parts(options.parts)
    if options.parts:
        options.overrides.append(f"parts={options.parts}")
    if options.answers and options.answers.exists():
        raise ValueError(f"{options.answers} already exists; choose another file")
    place = str(options.run or newest_run())
    run = load(place, options.checkpoint or "latest", options.overrides)

    validation = run.data.validation
    generates = options.beams or options.answers
    if generates and run.data.objective.input_kind == "text":
        raise ValueError("--beams and --answers are for answers, of pairs and conversations")
    if options.beams and run.model.kind != "encoder_decoder":
        raise ValueError(f"--beams needs an encoder_decoder; this model is a {run.model.kind}")
    with options.answers.open("x") if options.answers else nullcontext() as file:
        how = {"beams": options.beams, "file": file} if generates else {}
        accuracy = "val_exact_match" if generates else None
        metrics = evaluate(run, options.limit, watch, accuracy, **how)
    step, n = run.state.step, min(validation.n, options.limit or validation.n)
    if options.json:
        print(json.dumps({"run": place, "step": step, "examples": n, **metrics}))
    else:
        print(f"{place}, step {step:,}: {in_words(metrics)} ({n:,} examples)")


if __name__ == "__main__":  # as the module in which parts of yours register
    sys.exit(run_command(import_module("training.evaluate").main))
