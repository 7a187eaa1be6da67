"""Harness: lm-evaluation-harness evaluates a run on its tasks."""

import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any, NoReturn

from lm_eval.__main__ import cli_evaluate
from lm_eval.api.registry import register_model
from lm_eval.models.huggingface import HFLM
from torch import Tensor

from configs.parts import load_parts
from data.chat import add_plain_template
from data.disk import write_files
from model.checkpoint import LoadedRun
from model.hub.tokenizer import auto_tokenizer, tokenizer_files
from model.inference import prepare
from model.precision import choose_device
from model.pretrained import load_pretrained
from model.runs import newest_run


@register_model("plainformer")
class Harness(HFLM):
    """The harness's own class for models of transformers, with the network of a run, and the
    tokenizer that an export of it would have. `pretrained` only names the results: the run is set
    before lm-eval makes this."""

    run: LoadedRun

    def __init__(self, pretrained: str = "", device: str = "auto", **options: Any):
        network, tokenizer, config, _ = self.run
        if network.kind != "decoder":
            raise ValueError(f"--tasks needs a decoder; model.kind is {network.kind}")
        where = choose_device(device)
        prepare(network.to(where))
        add_plain_template(tokenizer, config)
        with TemporaryDirectory() as folder:
            write_files(Path(folder), tokenizer_files(tokenizer, network))
            theirs = auto_tokenizer(Path(folder))

        absent = SimpleNamespace(device=where, config=None)
        usual = {"tokenizer": theirs, "max_length": network.context_length}
        super().__init__(absent, **usual | options)

    def _model_call(self, inps: Tensor) -> Tensor:
        return self.run.model(inps)

    def generate_until(self, *requests: Any, **options: Any) -> NoReturn:
        hint = "export the run, and evaluate the folder by lm_eval --model hf"
        raise ValueError(f"a task that generates text is not supported by --tasks: {hint}")


def main(parser: Any, args: list[str] | None) -> None:
    """Parse what says which run; lm-eval parses the rest."""
    options, others = parser.parse_known_args(args)
    load_parts(options.parts)
    place = str(options.run or newest_run())
    Harness.run = load_pretrained(place, options.checkpoint or "latest")
    named = f"--model_args=pretrained={place.replace(',', '_')}"
    sys.argv[1:] = ["--model=plainformer", named, "--device=auto", *others]
    cli_evaluate()
