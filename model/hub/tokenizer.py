"""The tokenizer of a folder in a Hugging Face format: the one that AutoTokenizer makes."""

import json
import re
from pathlib import Path
from typing import Any

from configs.cli import warn
from configs.errors import HubError
from data.chat import PLAIN, TEMPLATE
from data.tokenizers.huggingface import FORCED, GENERATION, SETTINGS, without_class
from data.tokenizers.imported import HubTokenizer, load_hf_tokenizer
from data.tokenizers.tokenizer import Ids, Tokenizer
from model.hub.family import Keys, load_transformers
from model.hub.files import HF_FILES, naming
from model.weights import read_json

# {special token: its keys in config.json and attributes of a tokenizer, and its usual spellings}
ROLES = {
    "end": ("eos_token_id", "sep_token_id", "[SEP]", "</s>"),
    "start": ("decoder_start_token_id", "bos_token_id", "cls_token_id", "[CLS]", "<s>"),
    "pad": ("pad_token_id", "[PAD]", "<pad>"),
    "mask": ("mask_token_id", "[MASK]", "<mask>"),
}
SENTINEL = re.compile(r"<(?:extra_id_|\|sentinel_)(\d+)\|?>")  # T5's and this project's
CONFIG = "config.json"  # a run keeps its class and special tokens
# no logit depends on these, and forced tokens are rules of generation
KEPT = re.compile("(?!forced).*_token_id|model_type|prefix|task_specific_params")
# rules of generation that sample.py applies, and settings that are not rules
OBEYED = re.compile(
    "repetition_penalty|no_repeat_ngram_size|bad_words_ids|(begin_)?suppress_tokens|min_length"
    "|min_new_tokens|do_sample|.*_token_id|_.*|transformers_version|use_cache"
    "|return_dict_in_generate|output_.*"
)


def read_tokenizer(folder: Path, hf_config: Any) -> Tokenizer:
    files = {}
    for name in HF_FILES:
        path = folder / name
        if path.exists():
            files[name] = path.read_text(encoding="utf-8")

    kept = special_keys(hf_config)
    files[CONFIG] = json.dumps(kept, sort_keys=True)
    rules = read_rules(folder)
    if rules.keys() - kept.keys():
        files.setdefault(GENERATION, json.dumps(rules, indent=2))

    with naming(folder):
        with naming("AutoTokenizer"):
            theirs = auto_tokenizer(folder)
        specials = special_ids(theirs, hf_config, rules)
        text = theirs.backend_tokenizer.to_str()
        tokenizer = HubTokenizer(text, specials, hf_config.vocab_size, dict(sorted(files.items())))
        before, after = tokenizer.template
        with naming("AutoTokenizer adds tokens to a text"):
            tokenizer.checked(before + after)
        return tokenizer


def special_keys(hf_config: Any) -> Keys:
    """What a run keeps of config.json."""
    keys = hf_config.to_dict()
    return {name: keys[name] for name in keys if KEPT.fullmatch(name) and keys[name] is not None}


def read_rules(folder: Path) -> Keys:
    """The generation settings of a folder. Older ones have them in config.json."""
    path = folder / GENERATION
    if path.exists():
        rules = read_json(path)
    else:
        whole = read_json(folder / CONFIG)
        known = load_transformers().GenerationConfig().to_dict()
        rules = {name: whole[name] for name in known if whole.get(name) is not None}

    ignored = [
        f"{name} {json.dumps(value):.40}"
        for name, value in rules.items()
        if value is not None and not OBEYED.fullmatch(name)
    ]
    if ignored:
        warn(f"settings of generation that are ignored: {', '.join(ignored)}; sample.py has flags")
    return rules


def auto_tokenizer(folder: Path) -> Any:
    """The tokenizer of AutoTokenizer: some of its classes replace parts of tokenizer.json."""
    theirs = load_transformers().AutoTokenizer.from_pretrained(
        folder, local_files_only=True, trust_remote_code=False
    )
    if not theirs.is_fast:
        reason = f"{type(theirs).__name__} has no form in tokenizer.json"
        raise HubError(f"{reason}, which is the only one that is supported")
    return theirs


def special_ids(theirs: Any, hf_config: Any, rules: Keys) -> Ids:
    """{special token: id} for those that the model has. It may have several end tokens."""
    size = hf_config.vocab_size

    # an ordinary token may have such a spelling, too
    spelled = {token.content: i for i, token in theirs.added_tokens_decoder.items()}
    roles = {key: getattr(theirs, key, None) for keys in ROLES.values() for key in keys}

    known = {}
    for source in (spelled, roles, hf_config.to_dict(), rules):  # the last one wins
        for key, value in source.items():
            listed = value if isinstance(value, list) else [value]
            ids = [i for i in listed if type(i) is int and 0 <= i < size]
            if ids:  # -1 means none
                known[key] = ids

    specials = {}
    for special, keys in ROLES.items():
        ids = next((known[key] for key in keys if key in known), [])
        for n, i in enumerate(ids):
            specials[f"{special}_{n}" if n else special] = i

    if "end" not in specials:
        raise HubError("no end-of-text token: add eos_token to tokenizer_config.json")
    if "start" not in specials and hf_config.is_encoder_decoder:
        raise HubError("no start token: add decoder_start_token_id to generation_config.json")

    for key in FORCED:
        if rules.get(key) is not None and key not in known:
            raise HubError(f"{key} is {rules[key]}; the model has {size} tokens")

    for name, ids in known.items():
        if match := SENTINEL.fullmatch(name):
            [specials[f"sentinel_{match[1]}"]] = ids
    return specials


def tokenizer_files(tokenizer: Tokenizer, model: Any) -> dict[str, str]:
    """The files, {name: text}, for this model; config.json has only the special tokens."""
    # text is always text, unless it must name masks
    names_tokens = {"mask", "sentinel_0"} & tokenizer.specials.keys()
    splits = tokenizer.text is None and not names_tokens
    settings = {"model_max_length": model.context_length, "split_special_tokens": splits}

    text, written = without_class(tokenizer, settings)
    files = {SETTINGS: written} | tokenizer.files | {"tokenizer.json": text}

    if files.get(TEMPLATE) == PLAIN:  # which names the end of an answer
        own = json.loads(files[SETTINGS]) | {"split_special_tokens": False}
        files[SETTINGS] = json.dumps(own, indent=2)

    if CONFIG not in files:  # the tokenizer was made here
        ids = {
            "eos_token_id": tokenizer.specials["end"],
            "bos_token_id": tokenizer.start,
            "pad_token_id": tokenizer.specials.get("pad"),
        }
        if model.kind == "encoder_decoder":
            ids["decoder_start_token_id"] = tokenizer.start
        files[CONFIG] = files[GENERATION] = json.dumps(ids, indent=2)
    return files


def check_written(folder: Path, tokenizer: Tokenizer) -> None:
    """Check that AutoTokenizer gives the same ids for a text with all tokens."""
    theirs = load_hf_tokenizer(auto_tokenizer(folder).backend_tokenizer.to_str())
    text = tokenizer.decode(range(tokenizer.vocab_size))
    if theirs.encode(text, add_special_tokens=False).ids != tokenizer.encode(text).tolist():
        raise HubError(
            "AutoTokenizer would load another tokenizer for this class; choose another --family"
        )
