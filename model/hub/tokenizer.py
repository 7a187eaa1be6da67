"""Published: which folders are in the Hugging Face formats, and the tokenizer in them."""

from itertools import count, takewhile
from pathlib import Path

from configs.errors import HubError
from data.tokenizers.huggingface import from_hf, load_hf_tokenizer
from model.hub.files import NAME, read_json

# special tokens by our names: what others call them, and how BERT, RoBERTa and T5 spell them, whose older
# folders do not say
ROLES = {
    "end": (("eos", "sep"), ("[SEP]", "</s>")),
    "start": (("decoder_start", "bos", "cls"), ("[CLS]", "<s>")),
    "pad": (("pad",), ("[PAD]", "<pad>")),
    "mask": (("mask",), ("[MASK]", "<mask>")),
}


def is_hf_folder(place):
    """A folder in these formats, or the name of a model on the hub; not a run."""
    folder = Path(place).expanduser()
    if folder.is_dir():
        return (folder / "config.json").exists() and not (folder / "config.yaml").exists()
    return NAME.fullmatch(str(place)) is not None and not folder.parent.exists()


def read_tokenizer(folder):
    theirs, beside = read_json(folder / "config.json"), folder / "tokenizer_config.json"
    rows = theirs.get("vocab_size")
    if type(rows) is not int or rows < 1:
        raise HubError(f"config.json: vocab_size is {rows!r}; expected a whole number from 1 on")
    if not (folder / "tokenizer.json").is_file():
        raise HubError(
            f"{folder} has no tokenizer.json; transformers writes one: "
            "AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER)"
        )
    try:
        text = (folder / "tokenizer.json").read_text(encoding="utf-8")
        said = read_json(beside) if beside.exists() else {}
        return from_hf(text, special_ids(theirs, said, load_hf_tokenizer(text)), rows)
    except (OSError, ValueError, KeyError) as error:
        raise HubError(f"{folder / 'tokenizer.json'} cannot be used: {error}") from None


def special_ids(theirs, said, tokens):
    """Our names of the special tokens, and their ids: as config.json says, then as the tokenizer does, then
    as they are usually spelled."""

    def known(roles, spellings):
        for role in roles:
            i, name = theirs.get(f"{role}_token_id"), said.get(f"{role}_token")
            i = i[0] if isinstance(i, list) and i else i
            name = name.get("content") if isinstance(name, dict) else name
            if type(i) is int and 0 <= i < theirs["vocab_size"]:  # -1 says that there is none
                return i
            if isinstance(name, str) and tokens.token_to_id(name) is not None:
                return tokens.token_to_id(name)
        spelled = (tokens.token_to_id(spelling) for spelling in spellings)
        return next((i for i in spelled if i is not None and i < theirs["vocab_size"]), None)

    found = {name: i for name, own in ROLES.items() if (i := known(*own)) is not None}
    if "end" not in found:
        raise ValueError("it names no token that ends a text: add eos_token to tokenizer_config.json")
    for spelling in ("<extra_id_{}>", "<|sentinel_{}|>"):  # T5's, and our own
        ids = (tokens.token_to_id(spelling.format(n)) for n in count())
        found |= {f"sentinel_{n}": i for n, i in enumerate(takewhile(lambda i: i is not None, ids))}
    return found
