"""The tokenizer of a folder in a Hugging Face format."""

import json
import re
from pathlib import Path
from typing import Any

from configs.errors import HubError
from data.chat import PLAIN, TEMPLATE
from data.tokenizers.huggingface import to_hf
from data.tokenizers.tokenizer import (
    NO_TEMPLATE,
    HubTokenizer,
    Tokenizer,
    load_hf_tokenizer,
)
from model.hub.family import GENERATION_KEYS
from model.hub.files import HF_FILES, naming

# {special token: (names in config.json and tokenizer_config.json, other spellings)}
ROLES = {
    "end": (("eos", "sep"), ("[SEP]", "</s>")),
    "start": (("decoder_start", "bos", "cls"), ("[CLS]", "<s>")),
    "pad": (("pad",), ("[PAD]", "<pad>")),
    "mask": (("mask",), ("[MASK]", "<mask>")),
}
SENTINEL = re.compile(r"<(?:extra_id|\|sentinel)_(\d+)\|?>")  # T5's and this project's
ROLE_NAMES = {"end": "eos_token", "start": "bos_token", "pad": "pad_token", "mask": "mask_token"}
SETTINGS = "tokenizer_config.json"
CONFIG = "config.json"  # of which a run keeps the class, the special tokens and how to generate
GENERATION = "generation_config.json"
FORCED = {"forced_start": "forced_bos_token_id", "forced_end": "forced_eos_token_id"}
NO_CLASS = {  # adds nothing to a text
    "tokenizer_class": "PreTrainedTokenizerFast",
    "add_bos_token": False,
    "add_eos_token": False,
}


def read_tokenizer(folder: Path, hf_config: dict[str, Any]) -> Tokenizer:
    files = {}
    for name in HF_FILES:
        if (folder / name).exists():
            files[name] = (folder / name).read_text(encoding="utf-8")
    if "tokenizer.json" not in files:
        command = "AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER)"
        raise HubError(f"{folder} has no tokenizer.json; write one with transformers: {command}")
    with naming(folder):
        generation = read_file(files, GENERATION)
        names = read_file(files, "special_tokens_map.json") | read_file(files, SETTINGS)
    known = {"model_type", *GENERATION_KEYS}
    kept = [key for key in hf_config if key in known or key.endswith("_token_id")]
    files[CONFIG] = json.dumps({key: hf_config[key] for key in sorted(kept)})
    with naming(folder / "tokenizer.json"):
        vocab_size = hf_config["vocab_size"]
        text = files.pop("tokenizer.json")
        theirs = as_transformers(folder) or text
        if (
            max(load_hf_tokenizer(theirs).get_vocab().values(), default=0) < vocab_size
        ):  # it may add tokens
            text = theirs
        specials = special_ids(hf_config, generation, names, load_hf_tokenizer(text))
        return HubTokenizer(text, specials, vocab_size, files)


def as_transformers(folder: Path) -> str | None:
    """tokenizer.json as AutoTokenizer has it, some of whose classes replace normalizers and the like;
    None if transformers is missing or cannot load it."""
    try:
        from transformers import AutoTokenizer, logging

        logging.set_verbosity_error()
        options = {"local_files_only": True, "trust_remote_code": False}
        return AutoTokenizer.from_pretrained(folder, **options).backend_tokenizer.to_str()
    except Exception:  # of many types
        return None


def read_file(files: dict[str, str], name: str) -> dict[str, Any]:
    with naming(name):
        return {**json.loads(files.get(name, "{}"))}


def special_ids(
    hf_config: dict[str, Any], generation: dict[str, Any], names: dict[str, Any], library: Any
) -> dict[str, int]:
    """{special token: id}, from generation_config.json, else config.json, else by its name, else by
    the usual spelling. An id of -1 stands for none."""
    valid = range(hf_config["vocab_size"])
    # an ordinary token may be spelled so, too
    added = {token.content: i for i, token in library.get_added_tokens_decoder().items()}

    def ids_of(role: str) -> list[Any]:
        configs = [generation, hf_config]
        if role == "pad":  # decides on positions, too
            configs.reverse()
        values = [config.get(f"{role}_token_id") for config in configs]
        lists = [value if isinstance(value, list) else [value] for value in values]
        valid_lists = [[i for i in ids if i in valid] for ids in lists]
        return valid_lists[0] or valid_lists[1]

    specials: dict[str, int] = {}
    for special, (roles, spellings) in ROLES.items():
        candidates = []
        for role in roles:
            name = names.get(f"{role}_token") or ""
            name = name["content"] if isinstance(name, dict) else name
            candidates += [*ids_of(role), library.token_to_id(name)]
        candidates += map(added.get, spellings)
        known = [i for i in candidates if i is not None]
        if known:
            specials[special] = known[0]
    if "end" not in specials:
        raise HubError("no end-of-text token: add eos_token to tokenizer_config.json")
    if "start" not in specials and hf_config.get("is_encoder_decoder"):
        raise HubError("no start token: add decoder_start_token_id to generation_config.json")
    for name, key in FORCED.items():
        forced = (generation or hf_config).get(key)
        if isinstance(forced, list):
            [forced, *_] = forced
        if forced is not None and forced not in valid:
            raise HubError(f"{key} is {forced}; the model has {len(valid)} tokens")
        if forced is not None:
            specials[name] = forced

    for name, i in added.items():
        if match := SENTINEL.fullmatch(name):
            specials[f"sentinel_{match[1]}"] = i
    more_ends = {*ids_of("eos")} - {specials["end"]}
    return specials | {f"end_{n}": i for n, i in enumerate(sorted(more_ends), 1)}


def role_names(names: dict[str, str]) -> dict[str, Any]:
    return {role: names[name] for name, role in ROLE_NAMES.items() if name in names}


def drop_template(tokenizer: Tokenizer) -> Tokenizer:
    """Training here uses no template and no forced tokens, so that transformers must not add them:
    not by add_bos_token, nor by a class that has its own template, such as BertTokenizer."""
    for name in FORCED:
        tokenizer.specials.pop(name, None)
    for name in {CONFIG, GENERATION} & tokenizer.files.keys():
        content = read_file(tokenizer.files, name)
        content |= dict.fromkeys({*FORCED.values()} & content.keys())
        tokenizer.files[name] = json.dumps(content, indent=2)
    if not any(tokenizer.template):
        return tokenizer
    text, names = to_hf(tokenizer)
    tokenizer.text = json.dumps(json.loads(text) | {"post_processor": None})
    settings = read_file(tokenizer.files, SETTINGS)
    tokenizer.files[SETTINGS] = json.dumps(role_names(names) | settings | NO_CLASS, indent=2)
    tokenizer.template = NO_TEMPLATE
    return tokenizer


def write_tokenizer(folder: Path, tokenizer: Tokenizer, context_length: int) -> None:
    text, names = to_hf(tokenizer)
    settings = role_names(names) | NO_CLASS | {"model_max_length": context_length}
    if tokenizer.text is None and not {"mask", "sentinel_0"} & names.keys():
        settings["split_special_tokens"] = True  # text is always text; masks are written in it
    files = {SETTINGS: json.dumps(settings, indent=2)} | tokenizer.files | {"tokenizer.json": text}
    if files.get(TEMPLATE) == PLAIN:  # its end token is written in the text
        settings = read_file(files, SETTINGS) | {"split_special_tokens": False}
        files[SETTINGS] = json.dumps(settings, indent=2)
    for name in files.keys() - {CONFIG}:
        (folder / name).write_text(files[name], encoding="utf-8")
