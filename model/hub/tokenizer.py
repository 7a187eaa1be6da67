"""The tokenizer of a folder in a Hugging Face format: read as AutoTokenizer makes it, and written
such that AutoTokenizer makes the same."""

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

# {special token: where its id is looked for, in this order: by keys of config.json, which are also
# attributes of a tokenizer, and by usual spellings}
ROLES = {
    "end": ("eos_token_id", "sep_token_id", "[SEP]", "</s>"),
    "start": ("decoder_start_token_id", "bos_token_id", "cls_token_id", "[CLS]", "<s>"),
    "pad": ("pad_token_id", "[PAD]", "<pad>"),
    "mask": ("mask_token_id", "[MASK]", "<mask>"),
}
SENTINEL = re.compile(r"<(?:extra_id_|\|sentinel_)(\d+)\|?>")  # T5's and this project's
CONFIG = "config.json"  # a run keeps its class and special tokens
# special tokens and prefixes; but forced tokens are rules of generation
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

    files[CONFIG] = json.dumps(special_keys(hf_config), sort_keys=True)
    rules = read_rules(folder)
    if rules:  # in an older folder, they are in config.json
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
        raise HubError(
            f"{type(theirs).__name__} has no form in tokenizer.json, which is the only one that is "
            "supported"
        )
    return theirs


def special_ids(theirs: Any, hf_config: Any, rules: Keys) -> Ids:
    """{special token: id} for those that the model has. It may have several end tokens."""
    size = hf_config.vocab_size
    config = hf_config.to_dict()
    # not of all tokens: an ordinary one may have such a spelling, too
    spelled = {token.content: i for i, token in theirs.added_tokens_decoder.items()}

    def ids_of(*keys: str) -> list[int]:
        """Those of the first key or spelling that has any, by the first source that has it."""
        for key in keys:
            role = getattr(theirs, key, None)
            for value in (rules.get(key), config.get(key), role, spelled.get(key)):
                listed = value if isinstance(value, list) else [value]
                if ids := [i for i in listed if type(i) is int and 0 <= i < size]:  # not None or -1
                    return ids
        return []

    specials = {}
    for special, keys in ROLES.items():
        for n, i in enumerate(ids_of(*keys)):
            specials[f"{special}_{n}" if n else special] = i

    if "end" not in specials:
        raise HubError("no end-of-text token: add eos_token to tokenizer_config.json")
    if "start" not in specials and hf_config.is_encoder_decoder:
        raise HubError("no start token: add decoder_start_token_id to generation_config.json")
    for key in FORCED:
        if rules.get(key) is not None and not ids_of(key):
            raise HubError(f"{key} is {rules[key]}; the model has {size} tokens")

    for name, i in spelled.items():
        match = SENTINEL.fullmatch(name)
        if match and i < size:
            specials[f"sentinel_{match[1]}"] = i
    return specials


def tokenizer_files(tokenizer: Tokenizer, model: Any) -> dict[str, str]:
    """The files, {name: text}, for this model; of config.json, only what special_keys() keeps."""
    # special tokens in a text are split, as here, unless a text must name masks
    names_tokens = {"mask", "sentinel_0"} & tokenizer.specials.keys()
    splits = tokenizer.text is None and not names_tokens
    settings = {"model_max_length": model.context_length, "split_special_tokens": splits}

    text, written = without_class(tokenizer, settings)
    files = {SETTINGS: written} | tokenizer.files | {"tokenizer.json": text}

    if files.get(TEMPLATE) == PLAIN:  # it names the end of an answer, which must be parsed
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
