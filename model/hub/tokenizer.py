"""The tokenizer of a folder in a Hugging Face format."""

import json
import re
from pathlib import Path
from typing import Any

from configs.errors import HubError
from data.tokenizers.huggingface import to_hf
from data.tokenizers.tokenizer import (
    HF_FILES,
    NO_TEMPLATE,
    HubTokenizer,
    Tokenizer,
    load_hf_tokenizer,
)
from model.hub.files import naming

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
NO_CLASS = {  # adds nothing to a text
    "tokenizer_class": "PreTrainedTokenizerFast",
    "add_bos_token": False,
    "add_eos_token": False,
}


def read_tokenizer(folder: Path, hf_config: dict[str, Any]) -> Tokenizer:
    files = {}
    for name in (*HF_FILES, "generation_config.json"):
        if (folder / name).exists():
            files[name] = (folder / name).read_text(encoding="utf-8")
    if "tokenizer.json" not in files:
        command = "AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER)"
        raise HubError(f"{folder} has no tokenizer.json; write one with transformers: {command}")
    with naming(folder / "tokenizer.json"):
        text = files.pop("tokenizer.json")
        generation = json.loads(files.pop("generation_config.json", "{}"))
        names = json.loads(files.get("special_tokens_map.json", "{}"))
        names |= json.loads(files.get(SETTINGS, "{}"))
        specials = special_ids([hf_config, generation], names, load_hf_tokenizer(text))
        return HubTokenizer(text, specials, hf_config["vocab_size"], files)


def special_ids(
    configs: list[dict[str, Any]], names: dict[str, Any], library: Any
) -> dict[str, int]:
    """{special token: id}, from the first config that has it, else by its name, else by the usual
    spelling. An id of -1 stands for none."""
    valid = range(configs[0]["vocab_size"])
    # an ordinary token may be spelled so, too
    added = {token.content: i for i, token in library.get_added_tokens_decoder().items()}

    def ids_of(role: str) -> list[Any]:
        ids: list[Any] = []
        for config in configs:
            value = config.get(f"{role}_token_id")
            ids += value if isinstance(value, list) else [value]
        return [i for i in ids if i in valid]

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

    for name, i in added.items():
        if match := SENTINEL.fullmatch(name):
            specials[f"sentinel_{match[1]}"] = i
    more_ends = {*ids_of("eos")} - {specials["end"]}
    return specials | {f"end_{n}": i for n, i in enumerate(sorted(more_ends), 1)}


def role_names(names: dict[str, str]) -> dict[str, Any]:
    return {role: names[name] for name, role in ROLE_NAMES.items() if name in names}


def drop_template(tokenizer: Tokenizer) -> Tokenizer:
    """Training here uses no template, so AutoTokenizer must not add one to the exported model's
    prompts: not by add_bos_token, nor by a class that has its own, such as BertTokenizer."""
    if not any(tokenizer.template):
        return tokenizer
    text, names = to_hf(tokenizer)
    tokenizer.text = json.dumps(json.loads(text) | {"post_processor": None})
    settings = json.loads(tokenizer.files.get(SETTINGS, "{}"))
    tokenizer.files[SETTINGS] = json.dumps(role_names(names) | settings | NO_CLASS, indent=2)
    tokenizer.template = NO_TEMPLATE
    return tokenizer


def write_tokenizer(folder: Path, tokenizer: Tokenizer, context_length: int) -> None:
    text, names = to_hf(tokenizer)
    settings = role_names(names) | NO_CLASS | {"model_max_length": context_length}
    if tokenizer.text is None and not {"mask", "sentinel_0"} & names.keys():
        settings["split_special_tokens"] = True  # text is always text; masks are written in it
    files = {SETTINGS: json.dumps(settings, indent=2)} | tokenizer.files | {"tokenizer.json": text}
    for name, content in files.items():
        (folder / name).write_text(content, encoding="utf-8")
