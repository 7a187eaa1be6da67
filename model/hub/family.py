"""Family: a class of transformers, mostly as data. One table serves both directions."""

import json
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from configs.errors import HubError
from configs.registry import Count, check_value, matches
from model.hub.spec import LOSSLESS_UPGRADES, Spec
from model.hub.tensors import Table, columns

HFConfig = dict[str, Any]  # config.json
GROUPS = "attention.queries_per_kv"  # whose key counts the heads of keys and values


class Key(NamedTuple):
    """What a key of config.json sets."""

    options: str  # of the spec, separated by spaces
    type: Any = Count  # an annotation, or {value in config.json: value in the spec}
    default: Any = ...  # what a missing key means; ...: it is required
    older: str = ""  # another name of the key


SIZES = {  # as most families name them
    "hidden_size": Key("d_model"),
    "num_hidden_layers": Key("n_layers"),
    "num_attention_heads": Key("n_heads"),
    "max_position_embeddings": Key("context_length"),
    "intermediate_size": Key("ffn.d_ff"),
}
# keys of config.json that no logit depends on, and a run keeps: the class, special tokens, and how
# to generate where there is no generation_config.json
KEPT_KEYS = set(
    """
    model_type bos_token_id eos_token_id pad_token_id sep_token_id cls_token_id mask_token_id
    unk_token_id decoder_start_token_id forced_bos_token_id forced_eos_token_id
    task_specific_params prefix num_beams num_beam_groups max_length min_length length_penalty
    no_repeat_ngram_size early_stopping do_sample temperature top_k top_p typical_p
    repetition_penalty num_return_sequences bad_words_ids diversity_penalty suppress_tokens
    begin_suppress_tokens exponential_decay_length_penalty remove_invalid_values
    encoder_no_repeat_ngram_size
    """.split()  # noqa: SIM905
)
# and others
IGNORED_KEYS = KEPT_KEYS | set(
    """
    architectures transformers_version torch_dtype dtype _name_or_path name_or_path
    auto_map custom_pipelines vocab_size use_cache use_return_dict return_dict output_attentions
    output_hidden_states output_past torchscript initializer_range initializer_factor init_std
    problem_type id2label label2id num_labels _num_labels force_bos_token_to_be_generated
    finetuning_task attention_dropout activation_dropout attention_probs_dropout_prob attn_pdrop
    embd_pdrop classifier_dropout classif_dropout encoder_layerdrop decoder_layerdrop
    summary_activation summary_first_dropout summary_type summary_proj_to_labels summary_use_proj
    gradient_checkpointing pretraining_tp chunk_size_feed_forward save_step full_attn_mod
    interpolate_factor return_dict_in_generate output_scores tokenizer_class
    _attn_implementation_autoset _attn_implementation attn_implementation _flash_attn_2_enabled
    transformers.js_config unsloth_version unsloth_fixed
    """.split()  # noqa: SIM905
)
# keys that no logit depends on as long as they have this value
IGNORED_IF = {
    "is_encoder_decoder": False,
    "is_decoder": False,
    "add_cross_attention": False,
    "is_llama_config": True,
    "rope_interleaved": False,
    "tf_legacy_loss": False,
    "use_bfloat16": False,
    "pruned_heads": {},
    "tie_encoder_decoder": False,
}


def nothing(*arguments: Any) -> dict[str, Any]:
    return {}


class Family(NamedTuple):
    """Import: config.json, with `defaults` for missing keys, gives a spec by `keys`, then by `read`.
    All other keys are `required`, `implied` or `ignored`. Export: `keys` the other way round, then
    `write`; import of the result must give the spec again."""

    model_type: str
    architecture: str
    spec: Spec  # what all models of the family share; its rope_theta is what a missing one means
    keys: dict[str, Key]  # of config.json
    names: str  # of tensors, in two columns: there and here
    rules: Callable[[Spec, HFConfig], Table] = nothing  # for other tensors, or instead
    defaults: Mapping[str, Any] = {}
    required: Mapping[str, Any] = {}  # the only values supported
    implied: Callable[[Spec], HFConfig] = nothing  # the only values that fit the others
    ignored: str = ""  # more keys, which no logit depends on or which `read` and `rules` look up
    # (config.json, spec) -> options that no single key sets; (spec, special tokens) -> keys for them
    read: Callable[[HFConfig, Spec], Spec] = nothing
    write: Callable[[Spec, HFConfig], HFConfig] = nothing
    read_position: Callable[[HFConfig, Spec], Spec] = nothing  # and the same, of positions
    write_position: Callable[[Spec, HFConfig], HFConfig] = nothing
    # files of weights
    prefix: str = ""  # of all tensors but the head's; a file of the model without head lacks it
    aliases: Mapping[str, str] = {}  # tensors that a file may hold a second time
    fallback: Mapping[str, str | None] = {}  # to read for a missing tensor; None: zeros
    optional: str = ""  # a pattern of tensors that no logit depends on

    def tensors(self, spec: Spec, hf_config: HFConfig) -> Table:
        return columns(self.names) | self.rules(spec, {**self.defaults, **hf_config})

    def derive(
        self, model_type: str, architecture: str, without: str = "", **changes: Any
    ) -> "Family":
        """A class with these changes, and without these keys and options, whatever table has them."""
        for field in ("spec", "keys", "defaults", "required"):
            values = getattr(self, field)
            kept = {name: values[name] for name in values if name not in without.split()}
            changes[field] = kept | changes.get(field, {})
        return self._replace(model_type=model_type, architecture=architecture, **changes)


class Match(NamedTuple):
    """A model as a class of transformers has it: imported, or to be exported."""

    family: Family
    spec: Spec
    hf_config: HFConfig


# of an encoder without head: here its head is the embedding, with no weights of its own
HEADLESS = {"head.mlm_transform": None, "head.bias": False, "head.tie_weights": True}


def read_key(hf_config: HFConfig, name: str, key: Key) -> Any:
    """The value of the spec that this key of config.json sets: by its name, else by its older one,
    else by default."""
    older = hf_config.get(key.older, key.default)
    value = hf_config.get(name, older)
    if key.older in hf_config and value != older:
        both = f"{name} is {json.dumps(value)}, but {key.older} is {json.dumps(older)}"
        raise HubError(f"{both}; remove one")
    if value is ...:
        raise HubError(f"no {name}, which this model needs")
    if not isinstance(key.type, dict):
        return check_value(name, value, key.type)
    if value not in list(key.type):
        expected = ", ".join(map(json.dumps, key.type))
        raise HubError(f"{name} is {json.dumps(value)}; supported: {expected}")
    return key.type[value]


def divided_heads(spec: Spec) -> int:
    """Queries per key, from the number of key heads (null: as many as queries); or that number, from
    queries per key: the same division."""
    n_heads = spec["n_heads"]
    n = spec[GROUPS] or n_heads
    if n_heads % n:
        raise HubError(f"num_key_value_heads is {n}; expected a divisor of {n_heads}")
    return n_heads // n


def spec_from_hf(family: Family, hf_config: HFConfig) -> Spec:
    """The spec of a config.json. What matters and is not understood is refused by name."""
    for name in ("rope_parameters", "rope_scaling"):
        check_value(name, hf_config.get(name), dict | None)
    hf_config = {**family.defaults, **hf_config}
    values: Spec = {}
    for name, key in family.keys.items():
        value = read_key(hf_config, name, key)
        for option in key.options.split():
            if values.setdefault(option, value) != value:
                both = f"{name} is {value!r}, and another key sets {option} to {values[option]!r}"
                raise HubError(f"{both}; only equal values are supported")
    spec = family.spec | values
    if GROUPS in values:
        spec[GROUPS] = divided_heads(spec)
    for option, value in spec.items():
        if value is None and option.endswith("head_dim"):
            spec[option] = spec["d_model"] // spec["n_heads"]
        if value is None and option == "ffn.d_ff":
            spec[option] = 4 * spec["d_model"]
    spec |= family.read_position(hf_config, spec) | family.read(hf_config, spec)
    expected = {**IGNORED_IF, **family.required, **family.implied(spec)}
    for name in family.ignored.split():
        expected[name] = hf_config.get(name)
    older = [key.older for key in family.keys.values()]
    understood = {*IGNORED_KEYS, *expected, *family.keys, *family.defaults, *older}
    for name, value in hf_config.items():
        needed = expected.get(name)
        if value is None and not needed:  # null is false, 0 or none
            continue
        if name not in understood:
            raise HubError(f"{name} is {json.dumps(value)}; this key is not supported")
        if name in expected and value != needed:
            raise HubError(f"{name} is {json.dumps(value)}; only {json.dumps(needed)} is supported")
    return spec


def to_hf_config(family: Family, spec: Spec, ids: HFConfig) -> HFConfig:
    """config.json for this spec; a value without a name there is left out. `ids` are the special
    tokens."""
    hf_config = ids | {"model_type": family.model_type, "dtype": "float32"}
    hf_config["architectures"] = [family.architecture]
    counted = spec | {GROUPS: divided_heads(spec)} if GROUPS in spec else spec
    for name, key in family.keys.items():
        values = [counted.get(option) for option in key.options.split()]
        # one flag there may be several here; match() refuses what it changes
        value = any(values) if isinstance(values[0], bool) else values[0]
        if isinstance(key.type, dict):
            names = [n for n, other in key.type.items() if other == value]
            hf_config |= {name: names[0]} if names else {}
        elif type(value) is int and matches(0.5, key.type):  # a float may be an integer here alone
            hf_config[name] = float(value)
        else:
            hf_config[name] = value
    return hf_config | family.write_position(spec, ids) | family.write(spec, ids)


def match(family: Family, spec: Spec, ids: HFConfig) -> Match:
    """Write config.json and read it back: an option that comes back changed is refused."""
    # the other functions assume the kinds of the family
    kinds = {name: value for name, value in family.spec.items() if name.endswith("kind")}
    refuse_changes(spec, spec | kinds)
    hf_config = to_hf_config(family, spec, ids)
    upgraded = spec_from_hf(family, hf_config)
    if spec["kind"] == "encoder" and HEADLESS.items() <= spec.items():
        hf_config["architectures"] = [family.architecture.replace("ForMaskedLM", "Model")]
        upgraded |= HEADLESS
    refuse_changes(spec, upgraded)
    return Match(family, upgraded, hf_config)


def refuse_changes(spec: Spec, other: Spec) -> None:
    """Of what changes logits; dropout does not."""
    for name in spec | other:
        change = spec.get(name), other.get(name)
        is_allowed = name == "dropout" or LOSSLESS_UPGRADES.get(name) == change
        if change[0] != change[1] and not is_allowed:
            ours, theirs = map(json.dumps, change)
            raise HubError(f"model.{name} is {ours:.70}; only {theirs:.70} is supported")
