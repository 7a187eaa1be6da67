"""Harness: evaluates a decoder on tasks of lm-evaluation-harness, without an export."""

import json
from argparse import Namespace
from typing import Any

from lm_eval import simple_evaluate
from lm_eval.api.model import TemplateLM
from lm_eval.models.utils import normalize_gen_kwargs
from lm_eval.tasks import TaskManager
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window, make_table

from configs.cli import print
from configs.compose import compose
from configs.errors import DataError, errors_as
from data.tokenizers.tokenizer import NO_TEMPLATE, Tokenizer
from model.generate.decode import generator_of
from model.generate.sampling import GREEDY, Sampling
from model.generate.score import score
from model.generate.stream import TextStream
from model.pretrained import load_pretrained
from training.distributed import start


class Harness(TemplateLM):
    """It cuts long texts as the `hf` model of the harness does."""

    eot_token_id = 0  # set below; abstract in the base class

    def __init__(self, model: Any, tokenizer: Tokenizer) -> None:
        super().__init__()
        self.model = model
        self.tokenizer: Any = tokenizer
        self.eot_token_id = tokenizer.start  # before a text without context

    def tok_encode(self, string: str, add_special_tokens: Any = None, **options: Any) -> list[int]:
        before, after = NO_TEMPLATE if add_special_tokens is False else self.tokenizer.template
        return [*before, *self.tokenizer.encode(string).tolist(), *after]

    def _loglikelihood_tokens(self, requests: Any, **options: Any) -> list[tuple[float, bool]]:
        found = []
        for _, context, continuation in requests:
            ids = (context + continuation)[-self.model.context_length - 1 :]
            logprobs_N, is_greedy = score(self.model, ids, len(continuation))
            found.append((logprobs_N.sum().item(), is_greedy))
        return found

    def loglikelihood_rolling(self, requests: Any, **options: Any) -> list[float]:
        totals = []
        for request in requests:
            ids = self.tok_encode(*request.args)
            size = self.model.context_length
            windows = get_rolling_token_windows(ids, self.eot_token_id, size, context_len=1)
            pairs = [(None, *make_disjoint_window(window)) for window in windows]
            totals.append(sum(total for total, _ in self._loglikelihood_tokens(pairs)))
        return totals

    def generate_until(self, requests: Any, **options: Any) -> list[str]:
        texts = []
        for request in requests:
            text, given = request.args
            settings = normalize_gen_kwargs(given)
            n_new = settings["max_gen_toks"]
            known = {name: settings[name] for name in vars(GREEDY) if name in settings}
            ids = self.tok_encode(text)[-max(1, self.model.context_length - n_new) :]
            stream = TextStream(self.tokenizer, settings["until"], ids)
            steps = generator_of(self.model)(
                [ids],
                max_new_tokens=n_new,
                stop=self.tokenizer.end_ids,
                sampling=Sampling(**known),
            )
            for step in steps:
                stream.push(step.ids[0])
                if stream.finish_reason:
                    break
            stream.finish("length")
            texts.append(stream.text)
        return texts


def evaluate_tasks(place: str, options: Namespace) -> None:
    """Print the results of the harness. In float32, so that they can be compared with others."""
    world = start(compose(["precision=fp32", *options.overrides]))
    run = load_pretrained(place, options.checkpoint or "latest")
    model: Any = run.model.to(world.device)
    if model.kind != "decoder":
        raise ValueError(f"--tasks needs a decoder; model.kind is {model.kind}")
    tasks = options.tasks.split(",")
    manager = TaskManager()
    with errors_as(DataError, f"cannot load {options.tasks}"):
        manager.load(tasks)
    harness = Harness(model, run.tokenizer)
    with world.precision.autocast():
        found = simple_evaluate(harness, tasks=tasks, limit=options.limit, task_manager=manager)
    if options.json:
        row = {"run": place, "step": run.step, "tasks": found["results"]}
        print(json.dumps(row))
    else:
        print(f"{place}, step {run.step:,}\n{make_table(found)}")
