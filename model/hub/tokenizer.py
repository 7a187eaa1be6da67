"""The tokenizer of a folder in a Hugging Face format."""

import json
import re
from pathlib import Path
from typing import Any

from configs.errors import HubError
from configs.schema import ModelConfig
from data.chat import PLAIN, TEMPLATE
from data.tokenizers.huggingface import to_hf
from data.tokenizers.tokenizer import NO_TEMPLATE, HubTokenizer, Tokenizer, load_hf_tokenizer
from model.hub.family import KEPT_KEYS, HFConfig
from model.hub.files import HF_FILES, naming

# {special token: its keys in config.json and tokenizer_config.json, and its usual spellings}
ROLES = {
    "end": ("eos_token_id", "sep_token_id", "[SEP]", "</s>"),
    "start": ("decoder_start_token_id", "bos_token_id", "cls_token_id", "[CLS]", "<s>"),
    "pad": ("pad_token_id", "[PAD]", "<pad>"),
    "mask": ("mask_token_id", "[MASK]", "<mask>"),
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
    text = files.pop("tokenizer.json")
    kept = {key: hf_config[key] for key in sorted(KEPT_KEYS & hf_config.keys())}
    files[CONFIG] = json.dumps(kept)
    vocab_size = hf_config["vocab_size"]
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


def ids_by_key(hf_config: HFConfig, files: dict[str, str], library: Any) -> dict[str, list[int]]:
    """{key of config.json, or spelling of a special token: its ids}, as far as the model has them."""
    names = {}
    settings = read_file(files, "special_tokens_map.json") | read_file(files, SETTINGS)
    for key, name in settings.items():
        content = name.get("content") if isinstance(name, dict) else name
        if isinstance(content, str):
            names[f"{key}_id"] = library.token_to_id(content)
    # an ordinary token may be spelled so, too
    added = {token.content: i for i, token in library.get_added_tokens_decoder().items()}
    generation = read_file(files, GENERATION)
    # later sources win: generation_config.json over config.json, but not over its pad_token_id, from
    # which RoBERTa counts positions
    last = generation | {"pad_token_id": None}
    ids = {}
    for source in (added, names, generation, hf_config, last):
        for key, value in source.items():
            listed = value if isinstance(value, list) else [value]
            known = [i for i in listed if type(i) is int and 0 <= i < hf_config["vocab_size"]]
            if known:  # -1 stands for none
                ids[key] = known
    return ids


def special_ids(hf_config: HFConfig, files: dict[str, str], library: Any) -> dict[str, int]:
    """{special token: id}"""
    ids = ids_by_key(hf_config, files, library)
    specials: dict[str, int] = {}
    for special, keys in ROLES.items():
        for key in keys:
            if key in ids:
                specials.setdefault(special, ids[key][0])
    if "end" not in specials:
        raise HubError("no end-of-text token: add eos_token to tokenizer_config.json")
    if "start" not in specials and hf_config.get("is_encoder_decoder"):
        raise HubError("no start token: add decoder_start_token_id to generation_config.json")

    generation = read_file(files, GENERATION) or hf_config
    for special, key in FORCED.items():
        if generation.get(key) is None:
            continue
        if key not in ids:
            size = hf_config["vocab_size"]
            raise HubError(f"{key} is {generation[key]}; the model has {size} tokens")
        specials[special] = ids[key][0]

    for name in ids:
        if match := SENTINEL.fullmatch(name):
            specials[f"sentinel_{match[1]}"] = ids[name][0]
    more_ends = {*ids.get("eos_token_id", [])} - {specials["end"]}
    for n, i in enumerate(sorted(more_ends), 1):
        specials[f"end_{n}"] = i
    return specials


def drop_template(tokenizer: Tokenizer) -> Tokenizer:
    """Training here uses no template and no forced tokens, so that transformers must not add them:
    not by add_bos_token, nor by a class that has its own template, such as BertTokenizer."""
    for name in FORCED:
        tokenizer.specials.pop(name, None)
    for name in {CONFIG, GENERATION} & tokenizer.files.keys():
        content = read_file(tokenizer.files, name) | dict.fromkeys(FORCED.values())
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


def tokenizer_files(tokenizer: Tokenizer, config: ModelConfig) -> dict[str, str]:
    """{name: text}, of which config.json has the special tokens."""
    # text is always text, unless it has to name masks
    splits = tokenizer.text is None and not {"mask", "sentinel_0"} & tokenizer.specials.keys()
    settings = {"model_max_length": config.context_length, "split_special_tokens": splits}
    text, written = without_class(tokenizer, settings)
    files = {SETTINGS: written} | tokenizer.files | {"tokenizer.json": text}
    if files.get(TEMPLATE) == PLAIN:  # its end token is written in the text
        split = '"split_special_tokens": '
        files[SETTINGS] = files[SETTINGS].replace(f"{split}true", f"{split}false")
    if CONFIG not in files:  # it was made here
        ends = tokenizer.end_ids
        ids = {
            "eos_token_id": ends if len(ends) > 1 else ends[0],
            "bos_token_id": tokenizer.start,
            "pad_token_id": tokenizer.specials.get("pad"),
        }
        if config.kind == "encoder_decoder":
            ids["decoder_start_token_id"] = tokenizer.start
            ids["forced_eos_token_id"] = None
        files[CONFIG] = files[GENERATION] = json.dumps(ids, indent=2)
    return files
