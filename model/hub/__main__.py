"""Convert a folder in a Hugging Face format to a run (import), or a run to such a folder or to a
GGUF file (export).

python -m model.hub import --from FOLDER --to runs/name
python -m model.hub export --run runs/name --to FOLDER
python -m model.hub export --run runs/name --to FILE.gguf
"""

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import nn

from configs.cli import ArgumentParser, expand_user, print0, run_command
from configs.compose import compose
from configs.parts import load_parts
from configs.schema import Config
from data.chat import add_plain_template
from data.disk import atomic_folder
from data.tokenizers.tokenizer import Tokenizer
from model.checkpoint import load_run, model_tensors
from model.hub.adapter import export_adapter
from model.hub.card import model_card
from model.hub.convert import export, load_hf
from model.hub.families import FAMILIES
from model.hub.gguf import GGUF, export_gguf
from model.save import write_checkpoint, write_metadata
from model.weights import count_parameters


def write_run(
    folder: Path, config: Config, model: nn.Module, tokenizer: Tokenizer, origin: str
) -> None:
    """Write a run at step 0, which can be sampled from and fine-tuned, but not resumed."""
    with atomic_folder(folder) as draft:
        write_metadata(draft, config, {}, tokenizer, f"{origin}\n")
        write_checkpoint(draft, 0, {"model": model_tensors(model), "optimizer": {}}, {})


def import_run(place: str | Path, folder: Path) -> str:
    """Write the run, and return a line about it."""
    model, tokenizer, config = load_hf(place)
    defaults = compose([f"model.kind={config.kind}"])
    run_config = replace(defaults, model=config, tokenizer={"kind": "hub"})
    write_run(folder, run_config, model, tokenizer, f"imported from {place}")
    return f"{folder}: {count_parameters(model)}, vocab_size {tokenizer.vocab_size:,}"


def export_run(
    run: str | Path, which: str, folder: Path, family_name: str | None, dtype: str = "f32"
) -> str:
    """Write the folder or the file, and return how to load it."""
    model, tokenizer, settings, _ = loaded = load_run(run, which)
    add_plain_template(tokenizer, settings)
    if folder.suffix == GGUF:
        return export_gguf(model, tokenizer, folder, family_name, dtype)
    tokenizer.files["README.md"] = model_card(expand_user(run), loaded)
    _, hf_model = export(model, tokenizer, folder, family_name)
    return f"{folder}: for transformers.{type(hf_model).__name__}.from_pretrained({str(folder)!r})"


def check_place(place: Path, options: Any) -> None:
    is_file = place.suffix == GGUF
    if place.suffix.lower() in (GGUF, ".ggml", ".bin") and not is_file:
        raise ValueError(f"--to {place}: export writes a folder such as x, or a file x{GGUF}")
    if options.adapter and is_file:
        raise ValueError(f"--adapter writes a folder, not {place}")
    if options.dtype and not is_file:
        raise ValueError(f"--dtype {options.dtype} is for a file x.gguf, not for {place}")


def main(args: list[str] | None = None) -> None:
    parser = ArgumentParser(prog="python -m model.hub", description=__doc__)
    commands = parser.add_subparsers(dest="command", metavar="import|export", required=True)
    importing = commands.add_parser("import", help="Hugging Face folder to run")
    importing.add_argument(
        "--from", dest="place", required=True, help="folder, or owner/name of a hub model"
    )
    exporting = commands.add_parser("export", help="run to Hugging Face folder or GGUF file")
    exporting.add_argument("--run", required=True, help="run folder, such as runs/name")
    exporting.add_argument(
        "--checkpoint", default="latest", help="latest (default), best or a step"
    )
    exporting.add_argument("--parts", help="Python file of the parts that it was trained with")

    form = exporting.add_mutually_exclusive_group()
    form.add_argument(
        "--adapter",
        action="store_true",
        help="only the adapters of adapt=lora, in the format of PEFT (default: all weights, merged)",
    )
    names = "class of transformers, such as llama (default: the first that fits)"
    form.add_argument("--family", choices=FAMILIES, metavar="NAME", help=names)
    exporting.add_argument(
        "--dtype",
        choices=("f32", "f16", "q8_0"),
        help="type of the matrices in a .gguf file (default: f32)",
    )

    for command in (importing, exporting):
        command.add_argument(
            "--to", required=True, help="new folder; export also writes a file x.gguf"
        )
    options = parser.parse_args(args)

    folder = expand_user(options.to)
    if folder.exists():
        raise ValueError(f"{folder} already exists; choose another name")
    if options.command == "export":
        check_place(folder, options)
    folder.parent.mkdir(parents=True, exist_ok=True)

    if options.command == "import":
        print0(import_run(options.place, folder))
    else:
        load_parts(options.parts)
        if options.adapter:
            return print0(export_adapter(options.run, options.checkpoint, folder))
        dtype = options.dtype or "f32"
        print0(export_run(options.run, options.checkpoint, folder, options.family, dtype))


if __name__ == "__main__":
    sys.exit(run_command(main))
