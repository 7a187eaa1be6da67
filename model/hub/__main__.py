"""Convert a folder in a Hugging Face format to a run (import), or a run to such a folder (export).

python -m model.hub import --from FOLDER --to runs/name
python -m model.hub export --run runs/name --to FOLDER
"""

import sys
from dataclasses import asdict, replace
from importlib.util import find_spec
from pathlib import Path

from configs.cli import ArgumentParser, expand_user, print, run_command
from configs.compose import DEFAULT_OBJECTIVE, compose
from configs.errors import HubError
from model.checkpoint import save as checkpoint
from model.checkpoint.files import FORMAT, TrainState, model_config
from model.checkpoint.load import load_run
from model.hub import FAMILIES
from model.hub.convert import atomic_folder, export, load_hf


def import_run(place, folder):
    model, tokenizer, config, family = load_hf(place)
    defaults = compose([f"objective={DEFAULT_OBJECTIVE[config.kind]}", f"model.kind={config.kind}"])
    config = replace(defaults, model=config, tokenizer={"kind": "hub"})
    state = {"format": FORMAT, **asdict(TrainState()), "total_steps": 0}
    state |= {"micro_batch_size": None, "scaler": {}}
    with atomic_folder(folder) as draft:
        environment = [f"imported from {place}, a {family} model", checkpoint.versions()]
        checkpoint.write_metadata(draft, config, [], tokenizer, environment)
        tensors = {"model": checkpoint.model_tensors(model), "optimizer": {}}
        checkpoint.save(draft / "checkpoints", tensors, state)
    n = sum(p.numel() for p in model.parameters())
    kept = "the tokenizer is kept in its own format and run by the tokenizers library"
    report = f"{folder}: {family}, {n:,} parameters, vocab_size {tokenizer.vocab_size:,}"
    return f"{report}\n{kept}" if tokenizer.kind == "hub" else report


def export_run(run, which, folder, family):
    loaded = load_run(expand_user(run), which)
    family = export(
        loaded.model, loaded.tokenizer, model_config(loaded.config["model"]), folder, family
    )
    load = f"transformers.{family.auto}.from_pretrained({str(folder)!r})"
    report = f"{folder}: {family.architecture}, for {load}"
    hint = "transformers is not installed; if it is, export also compares the logits with its own"
    return report if find_spec("transformers") else f"{report}\n{hint}"


def main(argv):
    parser = ArgumentParser(prog="python -m model.hub", description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    command = commands.add_parser(
        "import", help="convert a folder in a Hugging Face format to a run"
    )
    command.add_argument(
        "--from", required=True, metavar="FOLDER", help="or owner/name of a hub model"
    )
    command.add_argument(
        "--to", required=True, metavar="runs/name", type=Path, help="new run folder"
    )
    command = commands.add_parser(
        "export", help="convert a run to a folder in a Hugging Face format"
    )
    command.add_argument("--run", required=True, metavar="runs/name", help="run folder")
    command.add_argument("--to", required=True, metavar="FOLDER", type=Path, help="new folder")
    command.add_argument(
        "--checkpoint", default="latest", help="latest, best or a step (default: latest)"
    )
    command.add_argument("--family", help=f"{', '.join(FAMILIES)} (default: the first that fits)")
    args = parser.parse_args(argv)
    args.to = expand_user(args.to)
    if args.to.exists():
        raise ValueError(f"{args.to} already exists; choose another folder")
    try:
        if args.command == "import":
            report = import_run(vars(args)["from"], args.to)
        else:
            report = export_run(args.run, args.checkpoint, args.to, args.family)
    except OSError as error:
        raise HubError(f"{error.filename or args.to}: {error.strerror or error}") from None
    print(report)  # outside: a full stdout is no failure of the folder


if __name__ == "__main__":
    sys.exit(run_command(main, sys.argv[1:]))
