"""Evaluate a run or a Hugging Face folder, on its own validation set, on other data or on tasks:

python -m training.evaluate --run runs/book data=text data.path=other.txt
python -m training.evaluate --run runs/book --tasks hellaswag,mine.yaml --limit 100
"""

import json
import math
import sys
from contextlib import nullcontext
from functools import partial

from rich.progress import Progress

from configs.cli import ArgumentParser, expand_user, print0, run_command
from configs.compose import compose_node, key_of, to_config
from configs.errors import DataError, errors_as
from configs.registry import Count, check_value
from data.corpus import load_data
from model.checkpoint import read_state
from model.generate.options import add_options
from model.pretrained import load_pretrained
from model.runs import newest_run, step_name
from training.distributed import start
from training.evaluation import evaluate
from training.finetune import with_model
from training.log import in_words
from training.predictions import exact_match
from training.run import Run, TrainState
from training.step import CPU_TOKENS, LossModule

DATA = ("data", "objective")
OVERRIDES = (*DATA, "device", "precision", "model.context_length")
RUN = """
--run PATH          run or Hugging Face folder (default: the newest run)
--checkpoint NAME   latest (default), best or a step
--parts PATH        Python file of the parts that it was trained with
"""
OPTIONS = """
--limit N           evaluate a fixed subset of N examples (default: all)
--answers PATH      new file: source, target and prediction of each answer as JSON lines
--json              print JSON
"""


def build_run(place: str, which: str, overrides: list[str]) -> Run:
    """Build a run as train.py does, without a folder and optimizers, with the data of these
    overrides or, if there are none, with its own."""
    keys = list(map(key_of, overrides))
    node, _ = with_model(compose_node([f"init_from={place}", *overrides]), keys, {})

    model, tokenizer, stored, step = load_pretrained(place, which)
    checkpoint = expand_user(place) / "checkpoints" / step_name(step)
    saved = read_state(checkpoint) if checkpoint.exists() else {}  # none in a Hugging Face folder

    is_own = "dataset" in saved and not any(key.startswith(DATA) for key in keys)
    if is_own:
        node.update({name: stored[name] for name in DATA})
    elif "data" not in keys:
        raise ValueError(
            f"there is no data to evaluate {place} on; add data= and its settings, such as "
            "data=text data.path=book.txt"
        )

    if saved:
        node.train.update(stored["train"])
        if "precision" not in keys:
            node.precision = stored["precision"]
    config = to_config(node)

    # a tokenizer that the run trained itself is in the cache, with the tokens
    is_made = is_own and stored["init_from"] is None
    data = load_data(config, None if is_made else tokenizer)
    if is_own and data.content_hash != saved["dataset"]:
        raise DataError(
            f"the text has changed since {place} was trained on it; add data= and its settings to "
            "evaluate on the text of today"
        )

    world = start(config)
    module = LossModule(model, config.loss).to(world.device)
    rows = saved.get("micro_batch_size") or CPU_TOKENS // config.model.context_length or 1
    state = TrainState(step, micro_batch_size=rows)
    return Run(config, data, world, module, [], None, state)


def main(args: list[str] | None = None) -> None:
    parser = ArgumentParser("python -m training.evaluate", description=__doc__)
    add_options(parser, RUN)
    if "--tasks" in [arg.partition("=")[0] for arg in args or sys.argv]:
        with errors_as(ValueError, "pip install -e '.[eval]' installs what --tasks needs"):
            from training import harness
        return harness.main(parser, args)

    add_options(parser, OPTIONS)
    help = f"settings as of train.py, among {', '.join(OVERRIDES)} (default: those of the run)"
    parser.add_argument("overrides", nargs="*", metavar="key=value", help=help)
    options = parser.parse_intermixed_args(args)

    check_value("--limit", options.limit, Count | None)
    if options.parts:
        options.overrides.append(f"parts={options.parts}")
    if options.answers and options.answers.exists():
        raise ValueError(f"{options.answers} already exists; choose another file")

    for key in map(key_of, options.overrides):
        if not key.startswith(("parts", *OVERRIDES)):
            raise ValueError(
                f"{key} has no effect on an evaluation: its settings are {', '.join(OVERRIDES)}, "
                "and --run names a run"
            )

    place = str(options.run or newest_run())
    run = build_run(place, options.checkpoint or "latest", options.overrides)

    if options.answers and run.data.objective.input_kind in ("text", "labels"):
        raise ValueError("--answers needs pairs or conversations")

    bar = Progress(transient=True, disable=not sys.stdout.isatty())
    with bar, options.answers.open("x") if options.answers else nullcontext() as file:
        exact = partial(exact_match, file=file) if file else None
        metrics = evaluate(run, options.limit, bar, exact)

    step = run.state.step
    n = min(run.data.validation.n, options.limit or math.inf)
    if options.json:
        print0(json.dumps({"run": place, "step": step, "examples": n} | metrics))
    else:
        print0(f"{place}, step {step:,}: {in_words(metrics)} ({n:,} examples)")


if __name__ == "__main__":
    sys.exit(run_command(main))
