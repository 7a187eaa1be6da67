"""Family: a class of transformers, mostly as data. One table serves both directions."""

import json
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from configs.errors import HubError
from configs.registry import Count, Decay, Positive, check_value
from model.hub.spec import LOSSLESS_UPGRADES

EMPTY = MappingProxyType({})
AUTO_CLASSES = {"decoder": "CausalLM", "encoder": "MaskedLM", "encoder_decoder": "Seq2SeqLM"}


class Key(NamedTuple):
    """What a key of config.json sets."""

    options: str  # of the spec, separated by spaces
    type: Any = Count  # an annotation, or a map from values of config.json to values of the spec
    default: Any = ...  # what a missing key means


SIZES = {  # as most families name them
    "hidden_size": Key("d_model"),
    "num_hidden_layers": Key("n_layers"),
    "num_attention_heads": Key("n_heads"),
    "max_position_embeddings": Key("context_length"),
    "intermediate_size": Key("ffn.d_ff"),
}
# keys of config.json that no logit depends on
IGNORED_KEYS = set(
    """
    architectures model_type transformers_version torch_dtype dtype _name_or_path name_or_path auto_map
    vocab_size use_cache use_return_dict return_dict output_attentions output_hidden_states output_past
    torchscript initializer_range initializer_factor init_std problem_type id2label label2id
    num_labels _num_labels bos_token_id eos_token_id pad_token_id sep_token_id cls_token_id
    mask_token_id unk_token_id decoder_start_token_id forced_bos_token_id forced_eos_token_id
    force_bos_token_to_be_generated task_specific_params finetuning_task attention_dropout
    activation_dropout attention_probs_dropout_prob attn_pdrop embd_pdrop classifier_dropout
    classif_dropout encoder_layerdrop decoder_layerdrop summary_activation summary_first_dropout
    summary_type summary_proj_to_labels summary_use_proj gradient_checkpointing pretraining_tp
    chunk_size_feed_forward prefix num_beams num_beam_groups max_length min_length length_penalty
    no_repeat_ngram_size early_stopping do_sample temperature top_k top_p typical_p repetition_penalty
    num_return_sequences bad_words_ids diversity_penalty suppress_tokens begin_suppress_tokens
    exponential_decay_length_penalty remove_invalid_values encoder_no_repeat_ngram_size
    return_dict_in_generate output_scores tokenizer_class _attn_implementation_autoset
    """.split()  # noqa: SIM905
)
# keys that no logit depends on as long as they have this value
IGNORED_IF = {
    "is_encoder_decoder": False, "is_decoder": False, "add_cross_attention": False,
    "is_llama_config": True, "rope_interleaved": False,
    "tf_legacy_loss": False, "use_bfloat16": False, "pruned_heads": {}, "tie_encoder_decoder": False,
}  # fmt: skip


class Family(NamedTuple):
    model_type: str
    architecture: str
    init: str  # the init scheme of new models
    spec: dict  # what all models of the family share
    keys: dict  # {key of config.json: Key}
    tensors: Callable  # (spec, hf_config) -> {name in the file: name in the model, or TensorRule}
    required: Mapping = EMPTY  # the only values supported
    ignored: str = ""  # more keys, which no logit depends on or which `read` and `tensors` look up
    implied: Callable = lambda spec: {}  # keys whose values follow from others
    read: Callable = lambda hf_config, spec: {}  # options of the spec that no single key sets
    write: Callable = lambda spec, ids: {}  # and the keys of config.json for them
    prefix: str = (
        ""  # of all tensors but those of the head; a file of the model without head lacks it
    )
    aliases: Mapping = EMPTY  # tensors that a file may hold a second time
    fallback: Mapping = EMPTY  # what to read in place of a missing tensor; None: zeros
    optional: tuple = ()  # patterns of tensors that no logit depends on

    @property
    def auto(self):
        return f"AutoModelFor{AUTO_CLASSES[self.spec['kind']]}"


def spec_from_hf(family, hf_config):
    """The spec of a config.json. What matters and is not understood is refused by name."""
    required = {key: value for key, value in IGNORED_IF.items() if hf_config.get(key) is not None}
    for key, value in (required | family.required).items():
        if hf_config.get(key, value) != value:
            raise HubError(f"config.json: {key} is {hf_config[key]!r}; only {value!r} is supported")
    values, source = {}, {}
    for key, (options, kind, default) in family.keys.items():
        value = hf_config.get(key, default)
        if value is ...:
            raise HubError(f"config.json of a {family.model_type} model has no {key}")
        if isinstance(kind, dict) and value not in list(kind):
            raise HubError(
                f"config.json: {key} is {value!r}; expected one of: {str(list(kind))[1:-1]}"
            )
        value = kind[value] if isinstance(kind, dict) else check_value(key, value, kind)
        for option in options.split():
            if values.setdefault(option, value) != value and option != "dropout":
                both = f"{source[option]} is {values[option]!r} and {key} is {value!r}"
                raise HubError(f"config.json: {both}; only equal values are supported")
            source.setdefault(option, key)
    spec = family.spec | values
    for node in ("attention", "cross_attention"):
        for dim in ("head_dim", "v_head_dim") if spec.get(f"{node}.kind") == "gqa" else ():
            spec[f"{node}.{dim}"] = spec.get(f"{node}.{dim}") or spec["d_model"] // spec["n_heads"]
    spec |= family.read(hf_config, spec)
    implied = family.implied(spec)
    for key, value in implied.items():
        if hf_config.get(key, value) != value:
            raise HubError(
                f"config.json: {key} is {hf_config[key]!r}, but other keys imply {value!r}"
            )
    understood = {*IGNORED_KEYS, *family.ignored.split(), *IGNORED_IF}
    understood |= {*family.required, *family.keys, *implied}
    if unknown := sorted(
        key for key in hf_config.keys() - understood if hf_config[key] is not None
    ):
        raise HubError(
            f"config.json: {unknown[0]} is {hf_config[unknown[0]]!r}; this key is not supported"
        )
    return spec


def to_hf_config(family, spec, ids):
    """config.json for this spec; a value that has no name there is left out. `ids` are the special tokens."""
    hf_config = {"model_type": family.model_type, "architectures": [family.architecture], **ids}
    for key, (options, kind, _) in family.keys.items():
        values = [spec[option] for option in options.split()]
        value = any(values) if isinstance(values[0], bool) else values[0]
        if isinstance(kind, dict):
            names = [name for name, other in kind.items() if other == value]
            hf_config |= {key: names[0]} if names else {}
        else:  # transformers takes no integer for a float
            is_float = type(value) is int and kind in (Positive, Positive | None, Decay)
            hf_config[key] = float(value) if is_float else value
    return hf_config | family.write(spec, ids)


class FamilyMatch(NamedTuple):
    family: Family
    hf_config: dict
    spec: dict  # with lossless upgrades
    mismatches: list[str]
    distance: tuple  # for the nearest family: of the same kind and position, and then with fewest mismatches


def match(family, spec, ids):
    """Write config.json and read it back. An option that comes back changed is upgraded or a mismatch."""
    kinds = {name: kind for name, kind in family.spec.items() if name.endswith("kind")}
    changes, hf_config, refusals = diff({name: spec.get(name) for name in kinds}, kinds), {}, []
    distance = ("kind" in changes, "position.kind" in changes, len(changes))
    if not changes:
        try:
            changes = diff(spec, spec_from_hf(family, to_hf_config(family, spec, ids)))
            upgrades = [
                name for name, change in changes.items() if LOSSLESS_UPGRADES.get(name) == change
            ]
            spec = spec | {name: changes[name][1] for name in upgrades}
            hf_config = to_hf_config(family, spec, ids)
            changes = diff(spec, spec_from_hf(family, hf_config))
        except KeyError as error:  # a part of one's own has other options
            changes, refusals = (
                {},
                [f"model.{error.args[0]} does not exist, and {family.architecture} has it"],
            )
        except ValueError as error:
            changes, refusals = {}, [str(error)]
    mismatches = [
        f"model.{name} is {json.dumps(value)} and {family.architecture} has {json.dumps(other)}"
        for name, (value, other) in changes.items()
    ]
    distance += len(refusals + mismatches), len(refusals)
    return FamilyMatch(family, hf_config, spec, refusals + mismatches, distance)


def diff(spec, other):
    """{name: (value, other value)}; no logit depends on dropout."""
    pairs = {
        name: (spec.get(name), other.get(name)) for name in {**spec, **other} if name != "dropout"
    }
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}
