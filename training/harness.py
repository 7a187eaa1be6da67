"""Harness: lm-evaluation-harness on a run, with all options of its command line:

python -m training.evaluate --run runs/book --tasks hellaswag,mine.yaml --limit 100
"""

import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import torch
from lm_eval.__main__ import cli_evaluate
from lm_eval.api.registry import register_model
from lm_eval.models.huggingface import HFLM
from lm_eval.models.utils_hf import stop_sequences_criteria
from torch import Tensor

from configs.cli import ArgumentParser
from configs.parts import load_parts
from model.checkpoint import model_config
from model.generate.decode import generate
from model.generate.sampling import GREEDY, Sampling
from model.hub.tokenizer import auto_tokenizer, tokenizer_files, write_files
from model.inference import prepare
from model.precision import choose_device
from model.pretrained import load_pretrained
from model.runs import newest_run


@register_model("plainformer")
class Harness(HFLM):
    """The harness's own class for models of transformers, with a network of ours and the tokenizer
    that its export would have."""

    def __init__(
        self, run: str, checkpoint: str = "latest", device: str = "auto", **options: Any
    ) -> None:
        network, tokenizer, config, _ = load_pretrained(run, checkpoint)
        if network.kind != "decoder":
            raise ValueError(f"--tasks needs a decoder; model.kind is {network.kind}")
        where = choose_device(device)
        prepare(network.to(where))
        self.network: Any = network
        with TemporaryDirectory() as folder:
            write_files(Path(folder), tokenizer_files(tokenizer, model_config(config["model"])))
            options["tokenizer"] = auto_tokenizer(Path(folder))
        absent: Any = SimpleNamespace(device=where, config=None)
        super().__init__(absent, max_length=self.network.context_length, **options)

    def _model_call(self, inps: Tensor) -> Tensor:
        return self.network(inps)

    def _model_generate(
        self, context: Any, max_length: int, stop: list[str], **settings: Any
    ) -> Tensor:
        rows = zip(context, settings["attention_mask"] > 0, strict=True)
        prompts = [row[is_text].tolist() or [self.prefix_token_id] for row, is_text in rows]
        n_prompt = context.shape[1]
        is_over = stop_sequences_criteria(self.tokenizer, stop, n_prompt, len(prompts))
        sampling = Sampling(**{name: settings[name] for name in vars(GREEDY) if name in settings})
        n_new = max_length - n_prompt
        for ids in generate(self.network, prompts, max_new_tokens=n_new, sampling=sampling):
            context = torch.cat([context, context.new_tensor(ids)[:, None]], 1)
            if is_over(context, None).all():
                break
        return context


def main(args: list[str] | None) -> None:
    parser = ArgumentParser("python -m training.evaluate")
    parser.add_argument("--run")
    parser.add_argument("--checkpoint", default="latest")
    parser.add_argument("--parts")
    options, others = parser.parse_known_args(args)
    load_parts(options.parts)
    model = f"run={options.run or newest_run()},checkpoint={options.checkpoint}"
    sys.argv[1:] = ["--model", "plainformer", "--model_args", model, "--device", "auto", *others]
    cli_evaluate()
