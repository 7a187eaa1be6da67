"""Published: which folders are in the Hugging Face formats, and the tokenizer in them."""

from itertools import count, takewhile
from pathlib import Path

from data.exchange import from_hub, library
from model.hub.errors import HubError
from model.hub.files import NAME, located, read_json
from training import stored


def is_published(place):
    """A folder in these formats, or the name of a model on the hub; not a run."""
    folder = Path(place).expanduser()
    if folder.is_dir():
        return (folder / "config.json").exists() and not (folder / "config.yaml").exists()
    return NAME.fullmatch(str(place)) is not None and not folder.parent.exists()


def tokenizer_of(place):
    """That of a run, or of such a folder."""
    if is_published(place):
        return read_tokenizer(located(place))
    return stored.read_tokenizer(Path(place).expanduser())


def read_tokenizer(folder):
    theirs = read_json(folder / "config.json")
    rows = theirs.get("vocab_size")
    if type(rows) is not int or rows < 1:
        raise HubError(f"config.json: vocab_size is {rows!r}; expected a whole number from 1 on")
    try:
        text = (folder / "tokenizer.json").read_text(encoding="utf-8")
        said = (
            read_json(folder / "tokenizer_config.json") if (folder / "tokenizer_config.json").exists() else {}
        )
        return from_hub(text, specials(theirs, said, library(text)), rows)
    except FileNotFoundError:
        raise HubError(
            f"{folder} has no tokenizer.json; transformers writes one: "
            "AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER)"
        ) from None
    except (OSError, ValueError, KeyError) as error:
        raise HubError(f"{folder / 'tokenizer.json'} cannot be used: {error}") from None


def specials(theirs, said, tokens):
    """Our names of the special tokens, and their ids: as config.json says, then as the tokenizer does."""

    def known(*keys):
        for key in keys:
            name = said.get(key.removesuffix("_id"))
            name = name.get("content") if isinstance(name, dict) else name
            i = theirs.get(key)
            i = i[0] if isinstance(i, list) and i else i
            i = i if type(i) is int else tokens.token_to_id(name) if isinstance(name, str) else None
            if i is not None:
                return i
        return None

    found = {
        "end": known("eos_token_id", "sep_token_id"),
        "start": known("decoder_start_token_id", "bos_token_id", "cls_token_id"),
        "pad": known("pad_token_id"),
        "mask": known("mask_token_id"),
    }
    found = {name: i for name, i in found.items() if i is not None}
    if "end" not in found:
        raise ValueError("it names no token that ends a text: add eos_token to tokenizer_config.json")
    numbers = takewhile(lambda n: tokens.token_to_id(f"<extra_id_{n}>") is not None, count())
    return found | {f"sentinel_{n}": tokens.token_to_id(f"<extra_id_{n}>") for n in numbers}
