"""The tokenizer of a folder in a Hugging Face format."""

from itertools import count, takewhile

from configs.cli import expand_user
from configs.errors import HubError
from configs.registry import Count, check_value
from data.tokenizers.huggingface import from_hf, load_hf_tokenizer
from model.hub.files import NAME, read_json

# {special token: (names in config.json and tokenizer_config.json, spellings to try if these have none)}
ROLES = {
    "end": (("eos", "sep"), ("[SEP]", "</s>")),
    "start": (("decoder_start", "bos", "cls"), ("[CLS]", "<s>")),
    "pad": (("pad",), ("[PAD]", "<pad>")),
    "mask": (("mask",), ("[MASK]", "<mask>")),
}


def is_hf_folder(place):
    """Is it a Hugging Face folder or the name of a model on the hub, and not a run?"""
    folder = expand_user(place)
    if folder.is_dir():
        return (folder / "config.json").exists() and not (folder / "config.yaml").exists()
    return NAME.fullmatch(str(place)) is not None and not folder.parent.exists()


def read_tokenizer(folder, hf_config):
    vocab_size = check_value("vocab_size", hf_config.get("vocab_size"), Count)
    path, settings = folder / "tokenizer.json", folder / "tokenizer_config.json"
    if not path.is_file():
        command = "AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER)"
        raise HubError(f"{folder} has no tokenizer.json; write one with transformers: {command}")
    try:
        text = path.read_text(encoding="utf-8")
        names = read_json(settings) if settings.exists() else {}
        return from_hf(text, special_ids(hf_config, names, load_hf_tokenizer(text), vocab_size), vocab_size)
    except (OSError, ValueError, KeyError) as error:
        raise HubError(f"{path} cannot be used: {error}") from None


def special_ids(hf_config, tokenizer_config, library, vocab_size):
    """{special token: id}, from config.json, else from tokenizer_config.json, else by the usual spelling."""

    def candidates(roles, spellings):
        for role in roles:
            i, name = hf_config.get(f"{role}_token_id"), tokenizer_config.get(f"{role}_token")
            yield i[0] if isinstance(i, list) and i else i
            name = name.get("content") if isinstance(name, dict) else name
            yield library.token_to_id(name) if isinstance(name, str) else None
        yield from map(library.token_to_id, spellings)

    ids = {}  # -1 in config.json stands for none
    for special, names in ROLES.items():
        valid = (i for i in candidates(*names) if type(i) is int and 0 <= i < vocab_size)
        if (i := next(valid, None)) is not None:
            ids[special] = i
    if "end" not in ids:
        raise ValueError("no end-of-text token: add eos_token to tokenizer_config.json")
    for spelling in ("<extra_id_{}>", "<|sentinel_{}|>"):  # T5's and this project's
        sentinels = (library.token_to_id(spelling.format(n)) for n in count())
        ids |= {f"sentinel_{n}": i for n, i in enumerate(takewhile(lambda i: i is not None, sentinels))}
    return ids
