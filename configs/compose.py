"""Compose: the YAML files of configs/ and the overrides of a command line become one typed Config."""

import math
import re
from copy import deepcopy
from dataclasses import asdict
from difflib import get_close_matches
from functools import cache
from itertools import product
from pathlib import Path

import hydra
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException, OverrideParseException
from omegaconf import OmegaConf
from omegaconf.errors import MissingMandatoryValue, OmegaConfBaseException

from configs.registry import from_dict
from configs.schema import MAX_INT, Config

CONFIGS = Path(__file__).parent
VERBATIM = ("name", "data.path", "data.id", "data.source", "data.target", "data.cache", "init_from")
NULLABLE = ("experiment", "attention@model.cross_attention")  # groups that may be chosen as null
PAIR_SOURCES = ("pairs", "parallel", "docstrings", "synthetic")
DEFAULT_OBJECTIVE = {"decoder": "next_token", "encoder": "masked", "encoder_decoder": "span"}
FROM_INIT = r"[+~]*(model|size|block|norm|attention|position|ffn|tokenizer)\b"

# what other projects, and older versions of this one, call a setting
SYNONYMS = {
    **dict.fromkeys(("lr", "learning_rate", "max_lr", "rate"), "optimizer.lr"),
    **dict.fromkeys(("min_lr", "floor"), "schedule.min_lr_ratio"),
    **dict.fromkeys(("max_iters", "max_steps", "iterations", "num_train_steps"), "train.steps"),
    **dict.fromkeys(("num_train_epochs", "max_epochs"), "train.epochs"),
    **dict.fromkeys(("gradient_accumulation_steps", "micro_batch"), "train.micro_batch_size"),
    **dict.fromkeys(
        ("context", "block_size", "seq_len", "seq_length", "n_positions"), "model.context_length"
    ),
    **dict.fromkeys(("n_embd", "dim", "hidden_size", "width"), "model.d_model"),
    **dict.fromkeys(("n_layer", "depth", "num_layers"), "model.n_layers"),
    **dict.fromkeys(("n_head", "heads", "num_heads"), "model.n_heads"),
    **dict.fromkeys(("dtype", "mixed_precision"), "precision"),
    **{"max_tokens": "train.tokens", "wandb_log": "wandb.mode", "decay": "schedule.decay_ratio"},
    **{
        "adamw_rate": "optimizer.adamw_lr_ratio",
        "windows": "eval.max_examples",
        "validation": "data.val_fraction",
    },
    **{"document": "data.split_on", "shortest": "data.min_length", "longest": "data.max_length"},
    **{"share": "objective.mask_prob or noise_density", "mean_length": "objective.mean_span_length"},
    **{"group": "model.attention.queries_per_kv", "window": "model.attention.sliding_window"},
    **{"key_width": "model.attention.head_dim", "value_width": "model.attention.v_head_dim"},
    **{"out_bias": "model.attention.o_bias", "softcap": "logit_softcap", "latent_width": "kv_lora_rank"},
    **{"query_rank": "q_lora_rank", "plain_width": "qk_nope_head_dim", "rotary_width": "qk_rope_head_dim"},
    **{
        "expand": "model.ffn.expansion",
        "base": "model.position.rope_theta",
        "tied": "model.head.tie_weights",
    },
    **{"fraction": "model.position.rotary_fraction", "buckets": "model.position.num_buckets"},
    **{"transform": "model.head.mlm_transform", "token_types": "model.embedding.type_vocab_size"},
    **{"show": "sample.every", "muon_fast": "muon_modern", "rmsnorm_plain": "rmsnorm_no_weight"},
}


def compose(overrides=(), init_config=None):
    """The Config that `python train.py *overrides` uses. init_config(place) gives the model and tokenizer settings
    of init_from."""
    raw, _ = resolve(overrides, init_config)
    return to_config(raw)


def resolve(overrides, init_config=None):
    """(the config as plain data, the overrides with the objective that fits data and model)"""
    rest = [o for o in overrides if not re.match(r"objective\.|objective=auto$", o)]
    raw = with_init_from(compose_raw(tuple(rest)), overrides, init_config)
    if raw["objective"]["kind"] != "auto":
        full = list(overrides)
    else:
        of_pairs = raw["data"]["kind"] in PAIR_SOURCES
        kind = "pairs" if of_pairs else DEFAULT_OBJECTIVE.get(raw["model"]["kind"], "next_token")
        full = [f"objective={kind}", *(o for o in overrides if o != "objective=auto")]
    return with_init_from(compose_raw(tuple(full)), overrides, init_config), full


def with_init_from(raw, overrides, init_config):
    if raw["init_from"] is None:
        return raw
    if init_config is None:
        raise ValueError(
            "init_from is a setting of train.py; train.py dry_run=true shows what it would train on"
        )
    if conflicts := [o for o in overrides if re.match(FROM_INIT, o)]:
        raise ValueError(
            f"{conflicts[0]} conflicts with init_from, which loads model and tokenizer; remove one"
        )
    return raw | init_config(raw["init_from"])


def compose_raw(overrides):
    """What Hydra makes of the overrides, as plain data."""
    for override in overrides:
        check_override(override)
    try:
        return deepcopy(compose_cached(tuple(map(quote_value, overrides))))
    except (HydraException, OmegaConfBaseException, ValueError) as error:
        raise ValueError(explain_error(error, overrides)) from None


@cache
def compose_cached(overrides, throw_on_missing=True):
    with hydra.initialize_config_dir(str(CONFIGS), version_base="1.3"):
        config = hydra.compose("train", list(overrides))
        return OmegaConf.to_container(config, resolve=True, throw_on_missing=throw_on_missing)


def check_override(override):
    """Refuse what Hydra would take and this project does not: its own settings, references, unknown options."""
    key, _, value = override.partition("=")
    name = key.lstrip("+~")
    group = name.partition("@")[0]
    if name.split(".")[0] == "hydra":
        raise ValueError(f"{key}: Hydra's own settings have no effect here; remove it")
    if "/" in key or ".." in key:
        raise ValueError(f"unknown setting {key}")
    if "${" in override and quote_value(override) == override:
        raise ValueError(f"{override}: interpolations are not supported; write the value itself")
    if not group or not (CONFIGS / group).is_dir() or group.startswith(("_", ".")):
        return
    options = options_of(group)
    if key[0] == "~":
        raise ValueError(f"{override} removes a required setting; {group}=... chooses another option")
    if value.startswith("["):
        raise ValueError(
            f"{override} lists several options of {group}; -m {group}=a,b trains one model for each"
        )
    if value in options or "," in value or (value == "null" and name in NULLABLE):
        return
    if group == "data" and (Path(value).expanduser().exists() or re.search(r"[./]", value)):
        raise ValueError(f"data=... is a kind of data, not a path; use data=text data.path={value}")
    hint = did_you_mean(value, options)
    raise ValueError(f"unknown option {group}={value}{hint}; choose one of: {', '.join(options)}")


def options_of(group):
    return sorted(path.stem for path in (CONFIGS / group).glob("*.yaml"))


def quote_value(override):
    """Paths and names are taken as typed, whatever characters they hold."""
    key, equals, value = override.partition("=")
    if not equals or key not in VERBATIM or value == "null":
        return override
    escaped = re.sub(r"(\\*)('|$)", lambda m: m[1] * 2 + m[2].replace("'", "\\'"), value)
    return f"{key}='{escaped.replace('${', chr(92) + '${')}'"


def parse_overrides(overrides, sweep=False):
    with hydra.initialize_config_dir(str(CONFIGS), version_base="1.3"):
        parser = OverridesParser.create(config_loader=GlobalHydra.instance().config_loader())
        try:
            parsed = parser.parse_overrides([quote_value(override) for override in overrides])
        except HydraException as error:
            raise ValueError(explain_error(error, overrides)) from None
    for override, p in zip(overrides, parsed, strict=True):
        if p.is_sweep_override() and not sweep:
            raise ValueError(f"{override} lists several values; -m runs one training for each")
    return parsed


def expand_sweep(overrides):
    """A list of overrides for each combination of the values that they list."""
    choices = []
    for override, parsed in zip(overrides, parse_overrides(overrides, sweep=True), strict=True):
        key, _, value = override.partition("=")
        listed = key in VERBATIM and not Path(value).exists()
        choices.append([f"{key}={path}" for path in value.split(",")] if listed else [override])
        if parsed.is_sweep_override():
            choices[-1] = [f"{parsed.get_key_element()}={value}" for value in parsed.sweep_string_iterator()]
    return [list(combination) for combination in product(*choices)]


def explain_error(error, overrides):
    """Hydra's error in one sentence; of an unknown setting with the name that was probably meant."""
    text = " ".join(
        re.split(r"\n\s*(?:Config search path|See https|full_key|object_type)", str(error))[0].split()
    )
    key = getattr(error, "full_key", None)
    if isinstance(error, OverrideParseException):
        return f"cannot parse {error.override!r}; write group=option or key=value, each as one shell word"
    if isinstance(error, MissingMandatoryValue):
        return f"{key or text.rpartition(' ')[2]} is required"
    if found := re.search(r"(?:Ambiguous value for argument|Sweep parameters) '(.+?)'", text):
        return f"{found[1]} lists several values; -m runs one training for each"
    if found := re.search(r"Could not override '(.+?)'|Key '(.+?)' (?:is )?not in", text):
        return unknown_setting(found[1] or key or found[2], overrides)
    if found := re.search(r"Multiple values for (.+?)\. To|An item is already at '(.+?)'", text):
        return f"{found[1] or found[2]} exists already; write it without +"
    return f"{key}: {text}" if key else text


def unknown_setting(key, overrides):
    """Which settings there are instead; or which option of the group has the one that was typed."""
    groups = tuple(o for o in overrides if (CONFIGS / re.split("[@=]", o)[0]).is_dir())
    known = flatten(compose_cached(groups, throw_on_missing=False))
    node, _, last = key.rpartition(".")
    group = node.rpartition(".")[2]
    if (CONFIGS / group).is_dir() and group:
        having = [
            o for o in options_of(group) if last in (OmegaConf.load(CONFIGS / group / f"{o}.yaml") or {})
        ]
        if having:
            return f"{group}={known.get(f'{node}.kind')} has no setting {last!r}; {group}={', '.join(having)} has it"
    if hint := did_you_mean(key, [name for name in known if not key.startswith(f"{name}.")]):
        return f"unknown setting {key}{hint}"
    beside = [name for name in known if name.rpartition(".")[0] == node]
    return f"unknown setting {key}" + (f"; there are {', '.join(beside)}" if beside and node else "")


def did_you_mean(word, known):
    """The nearest name: one that ends alike, what others call it, or one that looks alike."""
    last = word.rpartition(".")[2]
    alike = [k for k in known if k.rpartition(".")[2] == last and ("." in k or "." not in word)]
    near = sorted(alike, key=len)[:1] or [SYNONYMS[n] for n in (word, last) if n in SYNONYMS][:1]
    near = near or get_close_matches(word, known, 1, 0.7 if "." in word else 0.6)
    return f" (did you mean {near[0]}?)" if near else ""


def flatten(node, path=""):
    """{dotted key: value} of nested dicts."""
    flat = {}
    for key, value in node.items():
        flat |= flatten(value, f"{path}{key}.") if isinstance(value, dict) else {f"{path}{key}": value}
    return flat


def to_config(raw):
    """Plain data as a Config: every value of its type and within its bounds."""
    config = from_dict(Config, raw)
    for key, value in flatten(asdict(config)).items():
        limit = 2**31 if key.startswith("model.") else MAX_INT if isinstance(value, int) else 1e30
        if (
            isinstance(value, int | float)
            and key != "seed"
            and not (math.isfinite(value) and abs(value) <= limit)
        ):
            raise ValueError(f"{key} is {value}; expected a finite number of at most {limit:,}")
    train = config.train
    if train.steps is None and train.tokens is None and train.minutes is None and train.epochs is None:
        raise ValueError("a run needs an end: set train.steps, train.tokens, train.epochs or train.minutes")
    if train.patience is not None and config.eval.every is None:
        raise ValueError("train.patience counts evaluations and eval.every is null: set eval.every")
    return config
