"""User parts: a Python file whose classes register themselves. Only a command line can load it: a
stored config imports nothing."""

import hashlib
import inspect
import os
import sys
import traceback
from pathlib import Path
from types import ModuleType

CONFIGS = Path(__file__).parent
LOADED: dict[Path, str] = {}  # the hash of each file


def find_parts(place: str | Path) -> Path:
    path = Path(os.path.expanduser(place)).resolve()
    if path.suffix != ".py" or not path.is_file():
        raise ValueError(f"parts is {place}, and there is no such Python file")
    return path


def load_parts(place: str | Path | None) -> None:
    """Run the file, once per process."""
    if place is None:
        return
    path = find_parts(place)
    if path in LOADED:
        return
    source = path.read_bytes()
    module = ModuleType(f"parts_{path.stem}")
    module.__file__ = str(path)
    sys.modules[module.__name__] = module  # dataclasses look up their types here
    try:
        exec(compile(source, path, "exec"), vars(module))
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)
        lines = [frame.lineno for frame in frames if frame.filename == str(path)]
        line = lines[-1] if lines else getattr(error, "lineno", None)
        raise ValueError(f"{place}, line {line}: {type(error).__name__}: {error}") from error
    LOADED[path] = hashlib.sha256(source).hexdigest()[:16]


def parts_configs(place: str | Path) -> Path | None:
    """The folder of the file's YAML files, configs/ beside it."""
    folder = find_parts(place).parent / "configs"
    if folder == CONFIGS or not folder.is_dir():
        return None
    for path in folder.rglob("*.yaml"):
        if (CONFIGS / path.relative_to(folder)).exists():
            raise ValueError(f"{path} has the name of one of ours; choose another")
    return folder


def own_code() -> dict[str, str]:
    """{"parts": hashes of the files}, or {} if there are none."""
    return {"parts": " ".join(LOADED.values())} if LOADED else {}


def code_of(part: object) -> str:
    """The hash of the user's file that defines the part's class, or an empty string."""
    return LOADED.get(Path(inspect.getfile(type(part))), "")
