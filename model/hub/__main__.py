"""Import and export: a folder in the Hugging Face formats becomes a run, and a run such a folder.

python -m model.hub import --from FOLDER --to runs/name
python -m model.hub export --run runs/name --to FOLDER
"""

import argparse
import sys
from dataclasses import asdict, replace
from pathlib import Path

from configs.cli import run_command
from configs.compose import DEFAULT_OBJECTIVE, compose
from configs.errors import HubError
from model.checkpoint import save as checkpoint
from model.checkpoint.files import FORMAT, TrainState, model_config
from model.checkpoint.load import load_run
from model.hub.convert import atomic_folder, export, load_hf


def import_run(place, folder):
    if folder.exists():
        raise ValueError(f"{folder} exists already; choose another folder")
    found = load_hf(place)
    model = found.model()
    usual = compose([f"objective={DEFAULT_OBJECTIVE[found.config.kind]}", f"model.kind={found.config.kind}"])
    config = replace(usual, model=found.config, tokenizer={"kind": "hub"})
    with atomic_folder(folder) as draft:
        said = [f"imported from {place}, a {found.family} model", checkpoint.versions()]
        checkpoint.write_metadata(draft, config, [], found.tokenizer, said)
        state = {"format": FORMAT, **asdict(TrainState()), "total_steps": 0, "micro_batch_size": None, "scaler": {}}
        tensors = {"model": checkpoint.model_tensors(model), "optimizer": {}}  # it has not made a step here
        checkpoint.save(draft / "checkpoints", tensors, state)
    n = sum(p.numel() for p in model.parameters())
    print(f"{folder}: {found.family}, {n:,} parameters, {found.tokenizer.vocab_size:,} words")
    if found.tokenizer.kind == "hub":
        print("its tokenizer is none of ours; it is kept as it is and read by the tokenizers library")


def export_run(run, which, folder, family):
    opened = load_run(run, which)
    config = model_config(opened.config["model"])
    found = export((opened.model, opened.tokenizer, config), folder, family)
    print(f"{folder}: transformers.{found.auto}.from_pretrained({str(folder)!r}) is a {found.architecture}")


def main(words):
    parser = argparse.ArgumentParser(prog="python -m model.hub", description=__doc__.splitlines()[0])
    ways = parser.add_subparsers(dest="way", required=True)
    there = ways.add_parser("import", help="a folder in the Hugging Face formats becomes a run")
    there.add_argument("--from", required=True, metavar="FOLDER", help="or a model of the hub, owner/name")
    there.add_argument("--to", required=True, metavar="runs/name", type=Path)
    back = ways.add_parser("export", help="a run becomes a folder in the Hugging Face formats")
    back.add_argument("--run", required=True, metavar="runs/name")
    back.add_argument("--to", required=True, metavar="FOLDER", type=Path)
    back.add_argument("--checkpoint", default="latest", help="latest, best or a step")
    back.add_argument("--family", help="which class to be, where several fit")
    said = parser.parse_args(words)
    try:
        if said.way == "import":
            import_run(vars(said)["from"], said.to)
        else:
            export_run(said.run, said.checkpoint, said.to, said.family)
    except OSError as error:
        raise HubError(f"{error.filename or said.to}: {error.strerror or error}") from None


if __name__ == "__main__":
    sys.exit(run_command(main, sys.argv[1:]))
