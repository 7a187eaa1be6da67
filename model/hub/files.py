"""Files of a folder in a Hugging Face format, or of a model on the hub."""

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from configs.cli import expand_user
from configs.errors import HubError

NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
PATTERNS = ["*.json", "*.safetensors", "*.jinja"]


def is_hf_folder(place: str) -> bool:
    """Is it a Hugging Face folder or the name of a model on the hub, and not a run?"""
    folder = expand_user(place)
    if folder.is_dir():
        return (folder / "config.json").exists() and not (folder / "config.yaml").exists()
    return NAME.fullmatch(place) is not None and not folder.parent.exists()


def resolve_folder(place: str) -> Path:
    """The folder of that name; if there is none, the model of that name on the hub, downloaded
    once."""
    folder = expand_user(place)
    if folder.is_dir():
        return folder
    if not NAME.fullmatch(place):
        raise HubError(f"no such folder: {place}")
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(place, allow_patterns=PATTERNS))
    except Exception as error:  # of many types, and those of the libraries below it
        reason = str(error).strip().partition("\n")[0]
        raise HubError(f"{place} is no folder, and cannot be downloaded: {reason}") from None


@contextmanager
def refuse_invalid(folder: Path) -> Iterator[None]:
    """Values of other types and sizes in config.json raise errors of many kinds."""
    try:
        yield
    except HubError:
        raise
    except Exception as error:
        reason = str(error).partition("\n")[0]
        raise HubError(
            f"{folder / 'config.json'} does not describe a valid model: {reason}"
        ) from error


def read_json(path: Path) -> dict[str, Any]:
    if not path.exists():
        raise HubError(f"{path.parent} has no {path.name}")
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise HubError(f"{path} cannot be read ({error})") from None
    if not isinstance(value, dict):
        raise HubError(f"{path} is not a JSON object")
    return value


def files_of(folder: Path) -> dict[str, Path]:
    """{name of a tensor: its file} of a folder with one safetensors file, or with several and an
    index."""
    paths = [folder / "model.safetensors"]
    index = folder / "model.safetensors.index.json"
    if index.exists() and not paths[0].exists():
        names = read_json(index).get("weight_map", {}).values()
        paths = [folder / name for name in sorted(set(names))]
    files: dict[str, Path] = {}
    for path in paths:
        if not path.exists():
            others = [other.name for other in folder.glob("*.bin")]
            hint = f"; save {others[0]} as safetensors first" if others else ""
            raise HubError(f"{folder} has no {path.name}{hint}")
        try:
            with safe_open(path, "pt") as file:
                files |= dict.fromkeys(file.keys(), path)
        except (SafetensorError, OSError) as error:
            raise HubError(f"{path} cannot be read ({error})") from None
    return files
