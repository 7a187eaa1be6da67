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
from model.hub.family import KEPT_KEYS, HFConfig
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


def read_tokenizer(folder: Path, hf_config: HFConfig) -> Tokenizer:
    files = {}
    for name in HF_FILES:
        if (folder / name).exists():
            files[name] = (folder / name).read_text(encoding="utf-8")
    if "tokenizer.json" not in files:
        command = "AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER)"
        raise HubError(f"{folder} has no tokenizer.json; write one with transformers: {command}")
    kept = {key: hf_config[key] for key in sorted(KEPT_KEYS & hf_config.keys())}
    files[CONFIG] = json.dumps(kept)
    vocab_size = hf_config["vocab_size"]
    text = files.pop("tokenizer.json")
    with naming(folder):
        theirs = as_transformers(folder)
        if max(load_hf_tokenizer(theirs).get_vocab().values(), default=0) < vocab_size:
            text = theirs  # it may have more tokens than the model
        specials = special_ids(hf_config, files, load_hf_tokenizer(text))
        return HubTokenizer(text, specials, vocab_size, files)


def as_transformers(folder: Path) -> str:
    """tokenizer.json as AutoTokenizer has it, some of whose classes replace normalizers and the like;
    as it is if transformers is missing or cannot load it."""
    try:
        from transformers import AutoTokenizer, logging

        logging.set_verbosity_error()
        options = {"local_files_only": True, "trust_remote_code": False}
        return AutoTokenizer.from_pretrained(folder, **options).backend_tokenizer.to_str()
    except Exception:  # of many types
        return (folder / "tokenizer.json").read_text(encoding="utf-8")


def read_file(files: dict[str, str], name: str) -> HFConfig:
    with naming(name):
        return {**json.loads(files.get(name, "{}"))}


def special_ids(hf_config: HFConfig, files: dict[str, str], library: Any) -> dict[str, int]:
    """{special token: id}, from generation_config.json, else config.json, else by its name, else by
    the usual spelling. An id of -1 stands for none."""
    generation = read_file(files, GENERATION)
    names = read_file(files, "special_tokens_map.json") | read_file(files, SETTINGS)
    valid = range(hf_config["vocab_size"])
    # an ordinary token may be spelled so, too
    added = {token.content: i for i, token in library.get_added_tokens_decoder().items()}

    def ids_of(key: str, *configs: HFConfig) -> list[Any]:
        """Of the first config that has some."""
        for config in configs:
            value = config.get(key)
            ids = value if isinstance(value, list) else [value]
            known = [i for i in ids if i in valid]
            if known:
                return known
        return []

    specials: dict[str, int] = {}
    for special, (roles, spellings) in ROLES.items():
        candidates = []
        for role in roles:
            name = names.get(f"{role}_token") or ""
            name = name["content"] if isinstance(name, dict) else name
            candidates += ids_of(f"{role}_token_id", generation, hf_config)
            candidates.append(library.token_to_id(name))
        candidates += map(added.get, spellings)
        known = [i for i in candidates if i is not None]
        if known:
            specials[special] = known[0]
    if "end" not in specials:
        raise HubError("no end-of-text token: add eos_token to tokenizer_config.json")
    if "start" not in specials and hf_config.get("is_encoder_decoder"):
        raise HubError("no start token: add decoder_start_token_id to generation_config.json")
    for special, key in FORCED.items():
        for i in ids_of(key, generation or hf_config)[:1]:
            specials[special] = i
    for name, i in added.items():
        if match := SENTINEL.fullmatch(name):
            specials[f"sentinel_{match[1]}"] = i
    more_ends = {*ids_of("eos_token_id", generation, hf_config)} - {specials["end"]}
    return specials | {f"end_{n}": i for n, i in enumerate(sorted(more_ends), 1)}


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
    text, settings = without_class(tokenizer, read_file(tokenizer.files, SETTINGS))
    tokenizer.text = json.dumps(json.loads(text) | {"post_processor": None})
    tokenizer.files[SETTINGS] = settings
    tokenizer.template = NO_TEMPLATE
    return tokenizer


def without_class(tokenizer: Tokenizer, settings: HFConfig) -> tuple[str, str]:
    """tokenizer.json and tokenizer_config.json, which adds nothing to a text."""
    text, names = to_hf(tokenizer)
    roles = {role: names[name] for name, role in ROLE_NAMES.items() if name in names}
    return text, json.dumps(roles | settings | NO_CLASS, indent=2)


def tokenizer_files(tokenizer: Tokenizer, context_length: int) -> dict[str, str]:
    settings: HFConfig = {"model_max_length": context_length}
    if tokenizer.text is None and not {"mask", "sentinel_0"} & tokenizer.specials.keys():
        settings["split_special_tokens"] = True  # text is always text; masks are written in it
    text, written = without_class(tokenizer, settings)
    files = {SETTINGS: written} | tokenizer.files | {"tokenizer.json": text}
    if files.get(TEMPLATE) == PLAIN:  # its end token is written in the text
        settings = read_file(files, SETTINGS) | {"split_special_tokens": False}
        files[SETTINGS] = json.dumps(settings, indent=2)
    return files
