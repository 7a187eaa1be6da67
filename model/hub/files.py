"""Files of a folder in a Hugging Face format, or of a model on the Hub."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from configs.cli import expand_user
from configs.errors import HubError
from model.runs import RUNS

NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
# what export writes back, besides a tokenizer
HF_FILES = (
    "generation_config.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "modules.json",  # of sentence-transformers
    "1_Pooling/config.json",
)
# what AutoTokenizer makes a tokenizer from
VOCABULARIES = ["tokenizer.json", "vocab.*", "merges.txt", "*.model", "*.spm"]
# without the other formats and copies that a model on the Hub may have
PATTERNS = ["config.json", *HF_FILES, *VOCABULARIES, "model.safetensors*", "model-*.safetensors"]


def is_hf_folder(place: str) -> bool:
    """Whether this is a Hugging Face folder or the name of a model on the Hub, not a run."""
    folder = expand_user(place)
    is_name = NAME.fullmatch(place) and folder.parent != RUNS and not folder.parent.exists()
    return bool(is_name) or (folder / "config.json").exists()


def resolve_folder(place: str) -> Path:
    """The folder with this name, or the model with this name on the Hub, downloaded once."""
    folder = expand_user(place)
    if (folder / "config.json").exists():
        return folder
    if folder.exists() or not NAME.fullmatch(place):
        raise HubError(
            f"{place} is not a model in a Hugging Face format: there is no {folder / 'config.json'}; "
            "a run of this project needs no import"
        )
    from huggingface_hub import snapshot_download

    with naming(f"{place} is not a folder, and cannot be downloaded"):
        folder = Path(snapshot_download(place, allow_patterns=PATTERNS))
        if not list(folder.glob("*.safetensors")):
            snapshot_download(place, allow_patterns="pytorch_model*")
        return folder


@contextmanager
def naming(place: object) -> Iterator[None]:
    """Turn an error of any kind into one sentence, which says where it is."""
    try:
        yield
    except Exception as error:
        raise HubError(f"{place}: {' '.join(str(error).split())}") from error
