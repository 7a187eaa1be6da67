"""Files: a folder in the Hugging Face formats, or the name of one on the hub, and what lies there."""

import json
import re
from pathlib import Path

from configs.errors import HubError

NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
WANTED = ["*.json", "*.safetensors", "*.txt"]


def resolve_folder(place):
    """The folder of that name; failing that, the model of the hub that is called so, fetched once."""
    folder = Path(place).expanduser()
    if folder.is_dir():
        return folder
    if not NAME.fullmatch(str(place)):
        raise HubError(f"there is no folder {place}")
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(str(place), allow_patterns=WANTED))
    except Exception as error:  # of its own many kinds, and those of the libraries below it
        said = str(error).strip().splitlines() or [type(error).__name__]
        raise HubError(
            f"there is no folder {place}, and the model of that name cannot be fetched: {said[0]}"
        ) from None


def read_json(path):
    if not path.is_file():  # a pipe would be waited for
        raise HubError(f"{path.parent} has no {path.name}")
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise HubError(f"{path} cannot be read ({error})") from None
    if not isinstance(found, dict):
        raise HubError(f"{path} is not what its name says: it holds no object")
    return found


def files_of(folder):
    """{name of a tensor: its file}, of a folder with one safetensors file or with several and their index."""
    from safetensors import SafetensorError, safe_open

    index = folder / "model.safetensors.index.json"
    paths = [folder / "model.safetensors"]
    if index.exists() and not paths[0].exists():
        listed = read_json(index).get("weight_map")
        if not isinstance(listed, dict) or not all(re.fullmatch(r"[\w.-]+", str(f)) for f in listed.values()):
            raise HubError(f"{index} is no index of the files beside it")
        paths = [folder / name for name in sorted(set(listed.values()))]
    if missing := [path for path in paths if not path.is_file()]:
        other = sorted(
            path.name for pattern in ("*.bin", "*.h5", "*.msgpack") for path in folder.glob(pattern)
        )
        hint = f"; {other[0]} is not read: save it as safetensors first" if other else ""
        raise HubError(f"{folder} has no {missing[0].name}{hint}")
    found = {}
    for path in paths:
        try:
            with safe_open(path, "pt") as file:
                found |= dict.fromkeys(file.keys(), path)
        except (SafetensorError, OSError) as error:
            raise HubError(f"{path} cannot be read ({error})") from None
    return found
