"""Compose: the YAML files of configs/ and the overrides of a command line become one typed Config."""

import math
import os
import re
from contextlib import suppress
from copy import deepcopy
from dataclasses import asdict
from difflib import get_close_matches
from functools import cache
from itertools import islice, product
from pathlib import Path

import hydra
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException, OverrideParseException
from omegaconf import OmegaConf
from omegaconf.errors import MissingMandatoryValue, OmegaConfBaseException

from configs.cli import expand_user
from configs.registry import flatten, from_dict
from configs.schema import Config, check_numbers

CONFIGS = Path(__file__).parent
VERBATIM = ("name", "data.path", "data.id", "data.source", "data.target", "data.cache", "init_from")
PAIR_SOURCES = ("pairs", "parallel", "docstrings", "synthetic")
MAX_RUNS = 1000  # of a sweep
DEFAULT_OBJECTIVE = {"decoder": "next_token", "encoder": "masked", "encoder_decoder": "span"}
CANNOT_PARSE = "cannot parse {!r:.60}; write group=option or key=value, each as one shell word"
FROM_INIT = r"[+~]*(model|size|block|norm|attention|position|ffn|tokenizer)\b"

# what other projects call a setting
SYNONYM_TABLE = """
lr=learning_rate,max_lr min_lr_ratio=min_lr train.steps=max_iters,max_steps,iterations,num_train_steps
train.epochs=num_train_epochs,max_epochs train.tokens=max_tokens micro_batch_size=gradient_accumulation_steps
context_length=block_size,seq_len,seq_length,n_positions,context d_model=n_embd,dim,hidden_size
n_layers=n_layer,depth,num_layers n_heads=n_head,heads,num_heads precision=dtype,mixed_precision,fp16,bf16
name=out_dir,output_dir wandb.mode=wandb_log sliding_window=window logit_softcap=softcap rope_theta=base
"""
SYNONYMS = {
    s: name for name, row in (e.split("=") for e in SYNONYM_TABLE.split()) for s in row.split(",")
}


def compose(overrides=(), init_config=None):
    """The Config of a command line; init_config(place) reads model and tokenizer settings of init_from."""
    return to_config(resolve(overrides, init_config)[0])


def resolve(overrides, init_config=None):
    """(the config as plain data, the overrides with the objective that fits data and model)"""
    rest = [o for o in overrides if not re.match(r"objective\.|objective=auto$", o)]
    raw = compose_raw(rest)
    raw |= (pretrained := from_init(raw["init_from"], overrides, init_config))
    if raw["objective"]["kind"] == "auto":
        kind = DEFAULT_OBJECTIVE.get(raw["model"]["kind"], "next_token")
        kind = "pairs" if raw["data"]["kind"] in PAIR_SOURCES else kind
        overrides = [f"objective={kind}", *(o for o in overrides if o != "objective=auto")]
    return compose_raw(overrides) | pretrained, list(overrides)


def from_init(place, overrides, init_config):
    if place is None:
        return {}
    if init_config is None:
        raise ValueError("only train.py takes init_from; see what it would train by dry_run=true")
    if conflict := next((o for o in overrides if re.match(FROM_INIT, o)), None):
        raise ValueError(
            f"{conflict} conflicts with init_from, which sets model and tokenizer; remove it"
        )
    return init_config(place)


def compose_raw(overrides):
    """Hydra's composition of the overrides, as plain data."""
    for override in overrides:
        check_override(override)
    try:
        return deepcopy(compose_cached(tuple(map(quote_value, overrides))))
    except (HydraException, OmegaConfBaseException, ValueError) as error:
        raise ValueError(explain_error(error, overrides)) from None


@cache
def compose_cached(overrides, complete=True):
    with hydra.initialize_config_dir(str(CONFIGS), version_base="1.3"):
        return OmegaConf.to_container(
            hydra.compose("train", list(overrides)), throw_on_missing=complete
        )


def check_override(override):
    """Refuse what only Hydra accepts, such as its own settings and interpolations, and unknown options."""
    key, _, value = override.partition("=")
    group, at, _ = (name := key.lstrip("+~")).partition("@")
    if re.match(r"hydra\b", name):
        raise ValueError(f"{key}: Hydra's own settings have no effect here; remove it")
    if "/" in key or ".." in key or (at and group not in groups()):
        is_recipe = key.endswith((".py", ".yaml"))
        hint = (
            "recipes are experiment=..."
            if is_recipe
            else f"to train on it, use data=text data.path={key}"
        )
        raise ValueError(f"unknown setting {key}{f'; {hint}' if value == '' else ''}")
    if not re.fullmatch(r"\w[\w.-]{0,200}(@[\w.]+)?", name):
        raise ValueError(CANNOT_PARSE.format(override))
    if "${" in override and name not in VERBATIM:
        raise ValueError(f"{override}: interpolations are not supported; write the value itself")
    if len(value) > 4000 and name not in VERBATIM:
        raise ValueError(f"{override:.60}... is too long")
    options, path = groups().get(group, []), CONFIGS / group / f"{value}.yaml"
    if options and key.startswith("~"):
        raise ValueError(
            f"{override} removes a required setting; {group}=... chooses another option"
        )
    if options and value.startswith("["):
        raise ValueError(
            f"{override} lists options of {group}; -m {group}=a,b trains one model for each"
        )
    if value in options and not re.search("(?m)^# @package ", path.read_text(encoding="utf-8")):
        raise ValueError(f"{path} must begin with the line '# @package {package_of(group)}'")
    if not options or value in options or "," in value:
        return
    if group == "data" and (os.path.exists(expand_user(value)) or re.search(r"[./]", value)):
        raise ValueError(f"data=... is a kind of data, not a path; use data=text data.path={value}")
    hint = did_you_mean(value, options)
    raise ValueError(f"unknown option {group}={value}{hint}; choose one of: {', '.join(options)}")


def check_flags(args, known):
    """Refuse flags but the known ones: a setting is written without dashes."""
    if unknown := sorted({arg.partition("=")[0] for arg in args if arg.startswith("-")} - known):
        words = [word for arg in args for word in arg.split("=", 1)]  # of --lr 0.1 and --lr=0.1
        value = next(iter(words[words.index(unknown[0]) + 1 :]), "...")
        setting = nearest(unknown[0].lstrip("-").replace("-", "_"), flatten(compose_raw(())))
        example = f"{setting}={value}" if setting else "train.steps=100"
        hint = f"settings are written key=value, for example {example} (see train.py --cfg job)"
        raise ValueError(f"unknown option {unknown[0]}; {hint}")


@cache
def groups():
    names = sorted({path.parent.name for path in CONFIGS.glob("*/*.yaml")})
    return {name: sorted(path.stem for path in (CONFIGS / name).glob("*.yaml")) for name in names}


def package_of(group):
    """The node of the config that an option of the group fills; of presets, "_global_"."""
    texts = (path.read_text(encoding="utf-8") for path in (CONFIGS / group).glob("*.yaml"))
    return next(
        match[1] for text in texts if (match := re.search(r"(?m)^# @package ([\w.]+)", text))
    )


def quote_value(override):
    """Paths and names are taken as typed, whatever characters they contain."""
    key, equals, value = override.partition("=")
    if not equals or key not in VERBATIM or value == "null":
        return override
    escaped = re.sub(r"(\\*)('|$)", lambda m: m[1] * 2 + m[2].replace("'", "\\'"), value)
    return f"{key}='{escaped}'"


def expand_sweep(overrides):
    """A list of overrides for each combination of the values listed."""
    with hydra.initialize_config_dir(str(CONFIGS), version_base="1.3"):
        parser = OverridesParser.create(config_loader=GlobalHydra.instance().config_loader())
        try:
            parsed = parser.parse_overrides(list(map(quote_value, overrides)))
        except HydraException as error:
            raise ValueError(explain_error(error, overrides)) from None
    choices = []
    for override, p in zip(overrides, parsed, strict=True):
        key, _, value = override.partition("=")
        choices.append([override])
        if p.is_sweep_override():
            choices[-1] = []
            with suppress(
                HydraException, ValueError, ArithmeticError
            ):  # interval(0,1), range(1,2,0)
                values = islice(p.sweep_string_iterator(), MAX_RUNS + 1)
                choices[-1] = [f"{p.get_key_element()}={one}" for one in values]
        elif key in VERBATIM and not os.path.exists(value):
            choices[-1] = [f"{key}={path}" for path in value.split(",")]
        if not choices[-1]:
            raise ValueError(
                f"{override:.60} lists no values; write {key}=a,b or {key}=range(start,stop)"
            )
    if math.prod(map(len, choices)) > MAX_RUNS:
        raise ValueError(
            f"these settings have more than {MAX_RUNS:,} combinations, each of them a run"
        )
    return [list(combination) for combination in product(*choices)]


def explain_error(error, overrides):
    """Hydra's error in one sentence; for an unknown setting, with the name that was probably meant."""
    end = r"\n\s*(?:Config search path|See https|full_key|object_type)"
    text = " ".join(re.split(end, str(error))[0].split())
    key = getattr(error, "full_key", None)
    if isinstance(error, OverrideParseException):
        return CANNOT_PARSE.format(error.override)
    if isinstance(error, MissingMandatoryValue):
        return f"{key or text.rpartition(' ')[2]} is required"
    if match := re.search(r"(?:Ambiguous value for argument|Sweep parameters) '(.+?)'", text):
        return f"{match[1]} lists several values; -m runs one training for each"
    if match := re.search(
        r"Could not (?:override|delete from config\.) '(.+?)'|Key '(.+?)'.* not in", text
    ):
        return unknown_setting(match[1] or key or match[2], overrides)
    if match := re.search(r"Multiple values for (.+?)\. To|An item is already at '(.+?)'", text):
        return f"{match[1] or match[2]} exists already; write it without +"
    return f"{key}: {text}" if key else text


def unknown_setting(key, overrides):
    """Name the option that has this setting, the nearest name, or the settings of the same group."""
    known, options = {}, tuple(o for o in overrides if re.split("[@=]", o)[0] in groups())
    with suppress(HydraException, OmegaConfBaseException):
        known = flatten(compose_cached(options, complete=False))
    node, _, last = key.rpartition(".")
    group, node = (
        node.rpartition(".")[2],
        f"model.{node}" if f"model.{node}.kind" in known else node,
    )
    meant, kind = f"{node}.{last}".lstrip("."), known.get(f"{node}.kind")
    paths = [CONFIGS / group / f"{option}.yaml" for option in groups().get(group, []) if group]
    having = [p.stem for p in paths if last in OmegaConf.to_container(OmegaConf.load(p))]
    if having and kind and meant not in known:
        return f"{group}={kind} has no {last!r}; did you mean {group}={min(having, key=len)} {meant}=...?"
    names = [name for name in known if not key.startswith(f"{name}.")]
    hint = did_you_mean(meant, names if node else [*names, *groups()])
    siblings = ", ".join(name for name in known if node and name.rpartition(".")[0] == node)
    return f"unknown setting {key}{hint or (siblings and f'; there are {siblings}')}"


def did_you_mean(name, known):
    return f" (did you mean {near}?)" if (near := nearest(name, known)) else ""


def nearest(name, known):
    """The known name that ends alike, that a synonym stands for, or that looks alike; or None."""
    node, _, last = name.rpartition(".")
    if alike := [k for k in known if k.rpartition(".")[2] == last and ("." in k or not node)]:
        return get_close_matches(name, alike, 1, 0)[0]
    if synonym := SYNONYMS.get(last):
        return synonym if "." in synonym else nearest(synonym, known) or synonym
    siblings = {k.rpartition(".")[2]: k for k in known if k.rpartition(".")[0] == node}
    siblings |= {synonym: siblings[name] for synonym, name in SYNONYMS.items() if name in siblings}
    close = [siblings[sibling] for sibling in get_close_matches(last, siblings, 1)]
    return next(iter(close or get_close_matches(name, known, 1, 0.7 if node else 0.6)), None)


def to_config(raw):
    """Plain data as a Config: every value of its type and within its bounds."""
    config = from_dict(Config, raw)
    check_numbers(flatten(asdict(config)))
    train = config.train
    if (
        train.steps is None
        and train.tokens is None
        and train.minutes is None
        and train.epochs is None
    ):
        raise ValueError(
            "a run needs an end: set train.steps, train.tokens, train.epochs or train.minutes"
        )
    if train.patience is not None and config.eval.every is None:
        raise ValueError("train.patience counts evaluations and eval.every is null: set eval.every")
    return config
