"""Files of a folder in a Hugging Face format, or of a model on the hub."""

import json
import re
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError, safe_open

from configs.cli import expand_user
from configs.errors import HubError

MAX_BYTES = 1 << 24
NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")


def resolve_folder(place):
    """The folder of that name; if there is none, the model of that name on the hub, downloaded once."""
    folder = expand_user(place)
    if folder.is_dir():
        return folder
    if not NAME.fullmatch(str(place)):
        raise HubError(f"no such folder: {place}")
    from huggingface_hub import snapshot_download

    try:
        return Path(
            snapshot_download(str(place), allow_patterns=["*.json", "*.safetensors", "*.jinja"])
        )
    except Exception as error:  # of many types, and those of the libraries below it
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise HubError(
            f"no such folder: {place}, and no such model can be downloaded: {lines[0]}"
        ) from None


@contextmanager
def refuse_invalid(folder):
    """Values of other types and sizes in config.json raise errors of many kinds; all become a HubError."""
    try:
        yield
    except HubError:
        raise
    except (
        ValueError,
        TypeError,
        AttributeError,
        ArithmeticError,
        KeyError,
        RuntimeError,
    ) as error:
        reason = str(error).partition("\n")[0]
        raise HubError(
            f"{folder / 'config.json'} does not describe a valid model: {reason}"
        ) from None


def read_text(path, max_bytes=MAX_BYTES):
    if not path.is_file():  # reading a pipe would block
        raise HubError(f"{path.parent} has no {path.name}")
    folder, target = path.parent.resolve(), path.resolve()
    blobs = folder.parent.parent / "blobs"  # which the hub's cache links to
    if target.parent != blobs and not target.is_relative_to(folder):
        raise HubError(f"{path} is a link that leads out of its folder; copy the file")
    if target.stat().st_size > max_bytes:
        raise HubError(f"{path} has more than {max_bytes:,} bytes")
    try:
        return target.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise HubError(f"{path} cannot be read ({error})") from None


def read_json(path):
    text = read_text(path)
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise HubError(f"{path} cannot be read ({error})") from None
    if not isinstance(value, dict):
        raise HubError(f"{path} is not a JSON object")
    return value


def files_of(folder):
    """{name of a tensor: its file} of a folder with one safetensors file, or with several and an index."""
    index, paths = folder / "model.safetensors.index.json", [folder / "model.safetensors"]
    if index.exists() and not paths[0].exists():
        weight_map = read_json(index).get("weight_map")
        names = (
            {str(name) for name in weight_map.values()} if isinstance(weight_map, dict) else {""}
        )
        if not all(re.fullmatch(r"[\w.-]+", name) for name in names):
            raise HubError(f"{index} is not an index of files in its folder")
        paths = [folder / name for name in sorted(names)]
    if missing := [path for path in paths if not path.is_file()]:
        others = sorted(
            path.name for path in folder.glob("*") if path.suffix in (".bin", ".h5", ".msgpack")
        )
        hint = f"; {others[0]} is not supported: save it as safetensors first" if others else ""
        raise HubError(f"{folder} has no {missing[0].name}{hint}")
    files = {}
    for path in paths:
        try:
            with safe_open(path, "pt") as file:
                files |= dict.fromkeys(file.keys(), path)
        except (SafetensorError, OSError) as error:
            raise HubError(f"{path} cannot be read ({error})") from None
    return files
