"""Evaluate a run or a Hugging Face folder, on its own validation set or on other data:

python -m training.evaluate --run runs/book data=text data.path=other.txt
"""

import json
import math
import sys
from collections.abc import Iterable
from contextlib import nullcontext
from functools import partial

from rich.progress import track

from configs.cli import ArgumentParser, expand_user, print, run_command
from configs.compose import compose_node, key_of, to_config
from configs.errors import DataError
from configs.registry import Count, Natural, check_value
from data.batch import Batch
from data.corpus import load_data, with_objective
from model.checkpoint import newest_run, read_state, step_name
from model.pretrained import init_run, init_settings
from training.accuracy import exact_match
from training.distributed import start
from training.ema import EMA
from training.evaluation import evaluate
from training.finetune import fine_tuned
from training.log import in_words
from training.run import Run, TrainState
from training.step import CPU_TOKENS, LossModule

DATA = ("data", "objective")
OVERRIDES = (*DATA, "device", "precision", "model.context_length")


def watch(batches: Iterable[Batch], total: float) -> Iterable[Batch]:
    """A progress bar, on a terminal."""
    is_hidden = not sys.stdout.isatty()
    return track(batches, "evaluating", total, transient=True, disable=is_hidden)


def load(place: str, which: str, overrides: list[str]) -> Run:
    """A run that starts from this place, without a folder: of the data of these overrides or,
    without any, of its own."""
    keys = list(map(key_of, overrides))
    for key in keys:
        if not key.startswith(("parts", *OVERRIDES)):
            known = ", ".join(OVERRIDES)
            raise ValueError(f"{key} has no effect on an evaluation: its settings are {known}")
    node = compose_node([f"init_from={place}", "train.steps=0", *overrides])
    stored = init_settings(place)
    is_own = bool(stored.get("choices")) and not any(key.startswith(DATA) for key in keys)
    if is_own:
        node.update({name: stored[name] for name in DATA})
    elif "data" not in keys:
        hint = "add data= and its settings, such as data=text data.path=book.txt"
        raise ValueError(f"evaluate {place} on what? {hint}")
    if "train" in stored:  # of a run; a folder has no settings of training
        node.train.update(stored["train"])
        if "precision" not in keys:
            node.precision = stored["precision"]
    node, _ = fine_tuned(node, stored, keys, {})
    config = with_objective(to_config(node))

    model, tokenizer, step = init_run(place, which or "latest")
    # a tokenizer that the run trained itself is in the cache, with the tokens
    is_cached = is_own and stored["init_from"] is None
    data = load_data(config, None if is_cached else tokenizer)
    checkpoint = expand_user(place) / "checkpoints" / step_name(step)
    if is_own and not read_state(checkpoint)["dataset"].startswith(data.content_hash):
        hint = "data=, with its settings, evaluates on the text of today"
        raise DataError(f"the text has changed since {place} was trained on it; {hint}")

    world = start(config)
    module = LossModule(model, config.loss).to(world.device)
    state = TrainState(step, micro_batch_size=CPU_TOKENS // config.model.context_length or 1)
    return Run(config, data, world, module, [], EMA(model, None), state)


def main(args: list[str] | None = None) -> None:
    parser = ArgumentParser("python -m training.evaluate", description=__doc__)
    add = parser.add_argument
    add("--run", metavar="PATH", help="run or Hugging Face folder (default: the newest run)")
    add("--checkpoint", default="latest", metavar="NAME", help="latest (default), best or a step")
    add("--parts", metavar="PATH", help="Python file of the parts that it was trained with")
    limit = "evaluate N examples, always the same (default: all)"
    add("--limit", type=int, metavar="N", help=limit)
    add(
        "--beams",
        type=int,
        default=0,
        metavar="N",
        help="exact match by beam search, of an encoder-decoder",
    )
    answers = "new file: source, target and prediction of each answer as JSON lines"
    add("--answers", type=expand_user, metavar="PATH", help=answers)
    add("--json", action="store_true", help="print JSON")
    settings = f"settings as of train.py, among {', '.join(OVERRIDES)} (default: those of the run)"
    add("overrides", nargs="*", metavar="key=value", help=settings)
    options = parser.parse_intermixed_args(args)

    for override in options.overrides:
        if "=" not in override:
            raise ValueError(f"{override} is no key=value; did you mean --run {override}?")
    check_value("--limit", options.limit, Count | None)
    check_value("--beams", options.beams, Natural)
    if options.parts:
        options.overrides.append(f"parts={options.parts}")
    place = str(options.run or newest_run())
    run = load(place, options.checkpoint, options.overrides)

    generates = options.beams or options.answers
    if generates and run.data.objective.input_kind == "text":
        raise ValueError("--beams and --answers are for answers, of pairs and conversations")
    with options.answers.open("x") if options.answers else nullcontext() as file:
        exact = partial(exact_match, beams=options.beams, file=file) if generates else None
        metrics = evaluate(run, options.limit, watch, exact)

    step = run.state.step
    n = min(run.data.validation.n, options.limit or math.inf)
    if options.json:
        row = {"run": place, "step": step, "examples": n}
        print(json.dumps(row | metrics))
    else:
        print(f"{place}, step {step:,}: {in_words(metrics)} ({n:,} examples)")


if __name__ == "__main__":
    sys.exit(run_command(main))
