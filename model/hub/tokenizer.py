"""The tokenizer of a folder in a Hugging Face format."""

import json
from pathlib import Path
from typing import Any

from configs.errors import HubError
from configs.registry import Count, check_value
from data.tokenizers.huggingface import to_hf
from data.tokenizers.tokenizer import (
    HF_FILES,
    NO_TEMPLATE,
    HubTokenizer,
    Tokenizer,
    load_hf_tokenizer,
)
from model.hub.files import read_json

# {special token: (names in config.json and tokenizer_config.json, other spellings)}
ROLES = {
    "end": (("eos", "sep"), ("[SEP]", "</s>")),
    "start": (("decoder_start", "bos", "cls"), ("[CLS]", "<s>")),
    "pad": (("pad",), ("[PAD]", "<pad>")),
    "mask": (("mask",), ("[MASK]", "<mask>")),
}
SENTINELS = ("<extra_id_{}>", "<|sentinel_{}|>")  # T5's and this project's
ROLE_NAMES = {"end": "eos_token", "start": "bos_token", "pad": "pad_token", "mask": "mask_token"}
# classes of transformers that read settings from tokenizer_config.json, and the models they are for
AUTO_TOKENIZERS = {
    "gpt2": "GPT2Tokenizer",
    "roberta": "RobertaTokenizer",
    "bart": "BartTokenizer",
    "qwen3": "Qwen2Tokenizer",
    "bert": "BertTokenizer",
}
SETTINGS = "tokenizer_config.json"


def read_tokenizer(
    folder: Path,
    hf_config: dict[str, Any],
) -> Tokenizer:
    vocab_size = check_value("vocab_size", hf_config.get("vocab_size"), Count)
    files = {
        name: (folder / name).read_text(encoding="utf-8")
        for name in HF_FILES
        if (folder / name).exists()
    }
    if "tokenizer.json" not in files:
        command = "AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER)"
        raise HubError(f"{folder} has no tokenizer.json; write one with transformers: {command}")
    roles, settings, generation = (
        read_json(folder / name) if (folder / name).exists() else {}
        for name in (
            "special_tokens_map.json",
            SETTINGS,
            "generation_config.json",
        )
    )
    if "tokenizer_class" in hf_config:  # export writes no such key in config.json
        settings = {"tokenizer_class": hf_config["tokenizer_class"]} | settings
        files[SETTINGS] = json.dumps(settings, indent=2)
    try:
        text = obey_settings(files.pop("tokenizer.json"), settings, hf_config["model_type"])
        names = roles | settings
        specials = special_ids(hf_config, generation, names, load_hf_tokenizer(text), vocab_size)
        return HubTokenizer(text, specials, vocab_size, files)
    except (ValueError, KeyError) as error:
        raise HubError(f"{folder / 'tokenizer.json'} cannot be used: {error}") from None


def obey_settings(
    text: str,
    settings: dict[str, Any],
    model_type: str,
) -> str:
    """tokenizer.json, such that it normalizes a text, and puts a space before it, as AutoTokenizer
    does."""
    name = settings.get("tokenizer_class") or AUTO_TOKENIZERS.get(model_type, "")
    name = name.removesuffix("Fast")
    spec = json.loads(text)
    if name == "BertTokenizer" and spec["model"]["type"] == "WordPiece":
        spec["normalizer"] = {
            "type": "BertNormalizer",
            "clean_text": True,
            "handle_chinese_chars": settings.get("tokenize_chinese_chars", True),
            "strip_accents": settings.get("strip_accents"),
            "lowercase": settings.get("do_lower_case", True),
        }
    elif name in AUTO_TOKENIZERS.values():
        last = spec["pre_tokenizer"] or {}
        last = last.get("pretokenizers", [last])[-1]
        if "add_prefix_space" in last:
            last["add_prefix_space"] = settings.get("add_prefix_space") is True
    return text if spec == json.loads(text) else json.dumps(spec)


def special_ids(
    hf_config: dict[str, Any],
    generation: dict[str, Any],
    names: dict[str, Any],
    library: Any,
    vocab_size: int,
) -> dict[str, int]:
    """{special token: id}, from config.json, else by its name, else by the usual spelling."""

    def ids_in(
        config: dict[str, Any],
        role: str,
    ) -> list[int]:
        key = f"{role}_token_id"
        value = check_value(key, config.get(key), int | list[int] | None)
        ids = value if isinstance(value, list) else [value]
        return [i for i in ids if i is not None and 0 <= i < vocab_size]  # -1 stands for none

    # an ordinary token may be spelled so, too
    added = {token.content: i for i, token in library.get_added_tokens_decoder().items()}
    specials = {}
    for special, (roles, spellings) in ROLES.items():
        found = []
        for role in roles:
            name = names.get(f"{role}_token") or ""
            name = name["content"] if isinstance(name, dict) else name
            found += [*ids_in(hf_config, role), library.token_to_id(name)]
        found += map(added.get, spellings)
        found = [i for i in found if i is not None]
        if found:
            specials[special] = found[0]
    if "end" not in specials:
        raise ValueError("no end-of-text token: add eos_token to tokenizer_config.json")
    for n in range(len(added)):
        for spelling in SENTINELS:
            if spelling.format(n) in added:
                specials[f"sentinel_{n}"] = added[spelling.format(n)]
    more = {*ids_in(hf_config, "eos")} | {*ids_in(generation, "eos")}
    for n, i in enumerate(sorted(more - {specials["end"]}), 1):
        specials[f"end_{n}"] = i
    return specials


def role_names(names: dict[str, str]) -> dict[str, str]:
    return {role: names[name] for name, role in ROLE_NAMES.items() if name in names}


def drop_template(tokenizer: Tokenizer) -> Tokenizer:
    """Training here uses no template, so AutoTokenizer must not add one to the exported model's
    prompts: not by add_bos_token, nor by a class that has its own, such as BertTokenizer."""
    if not any(tokenizer.template):
        return tokenizer
    roles = role_names(to_hf(tokenizer)[1])
    if tokenizer.text is not None:
        tokenizer.text = json.dumps(json.loads(tokenizer.text) | {"post_processor": None})
    if SETTINGS in tokenizer.files:
        settings = roles | json.loads(tokenizer.files[SETTINGS])
        settings["tokenizer_class"] = "PreTrainedTokenizerFast"
        settings |= {"add_bos_token": False, "add_eos_token": False}
        tokenizer.files[SETTINGS] = json.dumps(settings, indent=2)
    tokenizer.template = NO_TEMPLATE
    return tokenizer


def write_tokenizer(
    folder: Path,
    tokenizer: Tokenizer,
    context_length: int,
) -> None:
    text, names = to_hf(tokenizer)
    settings = role_names(names) | {
        "model_max_length": context_length,
        "tokenizer_class": "PreTrainedTokenizerFast",
    }
    if tokenizer.text is None and not {"mask", "sentinel_0"} & names.keys():
        settings["split_special_tokens"] = True  # text is always text; masks are written in it
    files = {
        SETTINGS: json.dumps(settings, indent=2),
        **tokenizer.files,
        "tokenizer.json": text,
    }
    for name, content in files.items():
        (folder / name).write_text(content, encoding="utf-8")
