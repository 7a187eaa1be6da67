"""Files of a folder in a Hugging Face format, or of a model on the hub."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors.torch import load_file

from configs.cli import expand_user
from configs.errors import HubError
from model.weights import Tensors, read_json

NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
# a tokenizer, and what export writes back beside it
HF_FILES = (
    "tokenizer.json",
    "generation_config.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
)
# not the other formats and copies that a model on the hub may have, too
PATTERNS = ["config.json", *HF_FILES, "model.safetensors*", "model-*.safetensors"]


def is_hf_folder(place: str) -> bool:
    """Is it a Hugging Face folder or the name of a model on the hub, and not a run?"""
    folder = expand_user(place)
    is_name = NAME.fullmatch(place) and not folder.parent.exists()
    return bool(is_name) or (folder / "config.json").exists()


def resolve_folder(place: str) -> Path:
    """The folder of that name, or the model of that name on the hub, downloaded once."""
    folder = expand_user(place)
    if (folder / "config.json").exists():
        return folder
    if folder.exists() or not NAME.fullmatch(place):
        reason = "it has no config.json; a run of this project needs no import"
        raise HubError(f"{place} is no model in a Hugging Face format: {reason}")
    from huggingface_hub import snapshot_download

    with naming(f"{place} is no folder, and cannot be downloaded"):
        return Path(snapshot_download(place, allow_patterns=PATTERNS))


@contextmanager
def naming(place: object) -> Iterator[None]:
    """An error of any kind becomes one sentence, which says where it is."""
    try:
        yield
    except Exception as error:
        raise HubError(f"{place}: {' '.join(str(error).split())}") from error


def load_tensors(folder: Path) -> Tensors:
    """Those of one safetensors file, or of several and an index. They are mapped, not yet read."""
    names = {"model.safetensors"}
    index = folder / "model.safetensors.index.json"
    if index.exists() and not (folder / "model.safetensors").exists():
        names = {*read_json(index)["weight_map"].values()}
    tensors: Tensors = {}
    for name in sorted(names):
        if not (folder / name).exists():
            raise HubError(f"no {name}; save weights in another format as safetensors first")
        with naming(name):
            tensors |= load_file(folder / name)
    return tensors
