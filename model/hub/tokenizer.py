"""The tokenizer of a folder in a Hugging Face format."""

import json
from itertools import count, takewhile

from configs.cli import expand_user
from configs.errors import HubError
from configs.registry import Count, check_value
from data.tokenizers.huggingface import from_hf, to_hf
from data.tokenizers.limits import as_tokenizer_error
from data.tokenizers.tokenizer import HF_FILES, NO_TEMPLATE, load_hf_tokenizer
from model.hub.files import NAME, read_json, read_text

# {special token: (names in config.json and tokenizer_config.json, spellings to try if these have none)}
ROLES = {
    "end": (("eos", "sep"), ("[SEP]", "</s>")),
    "start": (("decoder_start", "bos", "cls"), ("[CLS]", "<s>")),
    "pad": (("pad",), ("[PAD]", "<pad>")),
    "mask": (("mask",), ("[MASK]", "<mask>")),
}
ROLE_NAMES = {"end": "eos_token", "start": "bos_token", "pad": "pad_token", "mask": "mask_token"}
MAX_TOKENIZER_BYTES = 40_000_000  # more than any published one has
# classes of transformers that read settings from tokenizer_config.json, and the models they are for
AUTO_TOKENIZERS = {"gpt2": "GPT2Tokenizer", "roberta": "RobertaTokenizer", "bart": "BartTokenizer"}
AUTO_TOKENIZERS |= {"qwen3": "Qwen2Tokenizer", "bert": "BertTokenizer"}


def is_hf_folder(place):
    """Is it a Hugging Face folder or the name of a model on the hub, and not a run?"""
    folder = expand_user(place)
    if folder.is_dir():
        return (folder / "config.json").exists() and not (folder / "config.yaml").exists()
    return NAME.fullmatch(str(place)) is not None and not folder.parent.exists()


def read_tokenizer(folder, hf_config):
    vocab_size = check_value("vocab_size", hf_config.get("vocab_size"), Count)
    path = folder / "tokenizer.json"
    if not path.is_file():
        command = "AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER)"
        raise HubError(f"{folder} has no tokenizer.json; write one with transformers: {command}")
    if (extra := folder / "additional_chat_templates").exists():
        raise HubError(f"{extra} is not supported; copy the model without it")
    try:
        text = read_text(path, MAX_TOKENIZER_BYTES)
        files = {
            name: read_text(folder / name) for name in HF_FILES[1:] if (folder / name).is_file()
        }
        generation, roles, settings = (
            read_json(folder / f"{name}.json") if (folder / f"{name}.json").exists() else {}
            for name in ("generation_config", "special_tokens_map", "tokenizer_config")
        )
        if name := hf_config.get("tokenizer_class"):  # export writes no such key in config.json
            settings = {"tokenizer_class": name} | settings
            files["tokenizer_config.json"] = json.dumps(settings, indent=2)
        specials = special_ids(
            hf_config, generation, roles | settings, load_hf_tokenizer(text), vocab_size
        )
        return from_hf(obey_settings(text, settings, hf_config), specials, vocab_size, files)
    except (OSError, ValueError, KeyError) as error:
        raise HubError(f"{path} cannot be used: {error}") from None


def obey_settings(text, settings, hf_config):
    """tokenizer.json, such that it normalizes a text, and puts a space before it, as AutoTokenizer does."""
    name = settings.get("tokenizer_class") or AUTO_TOKENIZERS.get(hf_config.get("model_type"))
    name, spec, before = str(name).removesuffix("Fast"), json.loads(text), json.loads(text)
    if name == "BertTokenizer" and spec["model"].get("type") == "WordPiece":
        chinese, lower = (
            settings.get(key, True) for key in ("tokenize_chinese_chars", "do_lower_case")
        )
        normalizer = {"strip_accents": settings.get("strip_accents"), "lowercase": lower}
        normalizer |= {"clean_text": True, "handle_chinese_chars": chinese}
        spec["normalizer"] = {"type": "BertNormalizer", **normalizer}
    elif name in AUTO_TOKENIZERS.values():
        last = spec.get("pre_tokenizer") or {}
        last = last.get("pretokenizers", [last])[-1]
        if "add_prefix_space" in last:
            last["add_prefix_space"] = settings.get("add_prefix_space") is True
    return text if spec == before else json.dumps(spec)


def role_names(names):
    return {role: names[name] for name, role in ROLE_NAMES.items() if name in names}


def drop_template(tokenizer):
    """Training here uses no template, so AutoTokenizer must not add one to the exported model's prompts: not
    by add_bos_token, nor by a class that has its own, such as BertTokenizer."""
    if not any(tokenizer.template):
        return tokenizer
    roles = role_names(to_hf(tokenizer)[1])
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "add_bos_token": False,
        "add_eos_token": False,
    }
    files = tokenizer.files
    with as_tokenizer_error("the tokenizer's files cannot be used"):
        if tokenizer.text is not None:
            tokenizer.text = json.dumps(json.loads(tokenizer.text) | {"post_processor": None})
        if "tokenizer.json" in files:
            files["tokenizer.json"] = tokenizer.text
        if (name := "tokenizer_config.json") in files:
            files[name] = json.dumps(roles | json.loads(files[name]) | settings, indent=2)
    tokenizer.template = NO_TEMPLATE
    return tokenizer


def write_tokenizer(folder, tokenizer, context_length):
    text, names = to_hf(tokenizer)
    settings = role_names(names) | {"model_max_length": context_length}
    settings["tokenizer_class"] = "PreTrainedTokenizerFast"
    if tokenizer.text is None and not {"mask", "sentinel_0"} & names.keys():
        settings["split_special_tokens"] = (
            True  # text is always text; masks have to be written in it
        )
    files = {"tokenizer_config.json": json.dumps(settings, indent=2)} | tokenizer.files
    for name, content in (files | {"tokenizer.json": text}).items():
        (folder / name).write_text(content, encoding="utf-8")


def special_ids(hf_config, generation_config, roles, library, vocab_size):
    """{special token: id}, from config.json, else from the names in `roles`, else by the usual spelling."""

    def candidates(names, spellings):
        for role in names:
            i, name = hf_config.get(f"{role}_token_id"), roles.get(f"{role}_token")
            yield from i if isinstance(i, list) else [i]
            name = name.get("content") if isinstance(name, dict) else name
            yield library.token_to_id(name) if isinstance(name, str) else None
        yield from map(added.get, spellings)

    def valid(ids):  # -1 in config.json stands for none
        ids = [i for i in ids if i is not None]
        if wrong := [i for i in ids if type(i) is not int]:
            raise ValueError(f"{wrong[0]!r} is not the id of a special token")
        return [i for i in ids if 0 <= i < vocab_size]

    # an ordinary token may be spelled so, too
    added = {token.content: i for i, token in library.get_added_tokens_decoder().items()}

    ids = {
        special: found[0]
        for special, names in ROLES.items()
        if (found := valid(candidates(*names)))
    }
    if "end" not in ids:
        raise ValueError("no end-of-text token: add eos_token to tokenizer_config.json")
    for spelling in ("<extra_id_{}>", "<|sentinel_{}|>"):  # T5's and this project's
        sentinels = (added.get(spelling.format(n)) for n in count())
        ids |= {
            f"sentinel_{n}": i for n, i in enumerate(takewhile(lambda i: i is not None, sentinels))
        }
    eos = [config.get("eos_token_id") for config in (hf_config, generation_config)]
    ends = valid(
        i for several in eos for i in (several if isinstance(several, list) else [several])
    )
    return ids | {f"end_{n}": i for n, i in enumerate(dict.fromkeys([ids["end"], *ends])) if n}
