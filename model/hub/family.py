"""Family: a class of transformers, mostly as data. read_config() turns its config into a spec, and
write_config() a spec into its config, by the same tables."""

import json
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from configs.errors import HubError
from model.hub.files import naming
from model.hub.spec import LOSSLESS_IF, LOSSLESS_UPGRADES, Spec
from model.hub.tensors import Table, columns

Keys = dict[str, Any]  # of config.json
KV_HEADS = "attention.n_kv_heads"  # what files have in place of queries_per_kv
SIZES = {  # names in all families but T5 and BART, or aliases that transformers accepts
    "hidden_size": "d_model",
    "num_hidden_layers": "n_layers",
    "num_attention_heads": "n_heads",
    "max_position_embeddings": "context_length",
    "tie_word_embeddings": "head.tie_weights",
}
# an architecture of an encoder that ends otherwise has no head, or not its usual one
WITH_HEAD = ("ForMaskedLM", "BertForPreTraining")
MAPPINGS = {  # {head of a family, or else its kind: the mapping of transformers to its class}
    "none": "MODEL_MAPPING",
    "classes": "MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING",
    "decoder": "MODEL_FOR_CAUSAL_LM_MAPPING",
    "encoder": "MODEL_FOR_MASKED_LM_MAPPING",
    "encoder_decoder": "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING",
}
# options that may change: dropout is only for training, and a table of sines implies the others
FREE = ("dropout", "position.base", "position.layout")
DROPOUTS = re.compile("dropout|pdrop")  # but not layerdrop, which drops layers


def load_transformers() -> Any:
    """Import transformers, only when a folder is read or written."""
    try:
        import transformers
    except ImportError as error:
        raise HubError(
            f"Hugging Face formats need transformers ({error}); pip install -e '.[hub]' installs it"
        ) from None

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    return transformers


def nothing(*arguments: Any) -> dict:
    return {}


# an encoder without a head: here its head is the embedding, with no weights of its own
HEADLESS = {"head.mlm_transform": None, "head.bias": False, "head.tie_weights": True}
# the head of a decoder for classes
LINEAR = HEADLESS | {"head.tie_weights": False, "head.logit_softcap": None}


class Family(NamedTuple):
    """Import: `keys`, then `read`, turn a transformers config into a spec. Export: `keys` in
    reverse, then `write`; importing the result must give the same spec."""

    model_type: str
    spec: Spec  # what all models of the family share
    # {key of config.json: options that it sets}; "" if none: `values` has its only valid value
    keys: Mapping[str, str]
    names: str  # of tensors, in two columns: there and here
    rules: Callable = nothing  # (spec, config) -> Table: for other tensors, or overriding names
    # {key: {value there: value here}}, for keys whose values differ, or are not all supported
    values: Mapping[str, Mapping] = {}
    read: Callable = nothing  # (config, spec so far) -> options that no single key sets
    write: Callable = nothing  # and back: (the spec and the special tokens) -> keys
    read_position: Callable = nothing  # the same for positions
    write_position: Callable = nothing
    # a pattern of tensors that a file may lack: no logit depends on them, or they are computed
    optional: str = "^$"
    note: str = ""  # how training differs from transformers, with the usual head
    class_head: Spec = LINEAR  # a head for classes: its options, and below its names
    class_names: str = "score head.map"

    def derive(self, model_type: str, without: str = "", **changes: Any) -> "Family":
        """A class with these changes, and without these keys and options in any of its tables."""
        for field in ("spec", "keys", "values"):
            values = getattr(self, field)
            kept = {name: values[name] for name in values if name not in without.split()}
            changes[field] = kept | changes.get(field, {})
        return self._replace(model_type=model_type, **changes)


class Match(NamedTuple):
    """A model as a transformers class describes it: imported, or to be exported."""

    family: Family
    spec: Spec
    config: Any  # of transformers

    @property
    def head(self) -> str:
        """ "classes", "none", or "" for the usual one of its kind."""
        if self.spec.get("classes"):
            return "classes"
        if self.spec["kind"] == "encoder" and HEADLESS.items() <= self.spec.items():
            return "none"
        return ""

    def model_class(self) -> Any:
        mapping = getattr(load_transformers(), MAPPINGS[self.head or self.spec["kind"]])
        return mapping[type(self.config)]

    def table(self) -> Table:
        """How the tensors of the class become those of the model, and back."""
        family = self.family
        names = family.names
        if self.head == "classes":
            kept = [line for line in names.splitlines() if " head." not in line]
            names = "\n".join([*kept, family.class_names])
        table = columns(names) | family.rules(self.spec, self.config)
        if self.head == "none":  # names there lack their first part, that of the encoder
            table = {name.partition(".")[2]: rule for name, rule in table.items()}
        return table


def read_config(family: Family, config: Any) -> Spec:
    """The spec of a config. A value that has no counterpart here is refused by name."""
    spec = family.spec | read_keys(family, config)
    for option, value in spec.items():
        if value is None and option.endswith("head_dim"):
            spec[option] = spec["d_model"] // spec["n_heads"]
    if spec["ffn.d_ff"] is None:
        spec["ffn.d_ff"] = 4 * spec["d_model"]

    spec |= family.read_position(config, spec)
    return spec | family.read(config, spec) | read_head(family, config)


def read_keys(family: Family, config: Any) -> Spec:
    """The options that single keys set."""
    found: Spec = {}
    for name, options in family.keys.items():
        value = getattr(config, name, None)
        known = family.values.get(name)
        if known is not None:
            if value not in list(known):
                supported = ", ".join(map(json.dumps, known))
                raise HubError(f"{name} is {json.dumps(value)}; supported: {supported}")
            value = known[value]

        for option in options.split():
            other = found.setdefault(option, value)
            if other != value:
                both = f"{name} is {value!r}, and another key sets {option} to {other!r}"
                raise HubError(f"{both}; only equal values are supported")
    if KV_HEADS in found:
        found["attention.queries_per_kv"] = found["n_heads"] // found.pop(KV_HEADS)
    return found


def read_head(family: Family, config: Any) -> Spec:
    """The options of a head that is not the usual one, as the name of the class says."""
    kind = family.spec["kind"]
    architecture = (config.architectures or WITH_HEAD)[0]
    if kind != "encoder_decoder" and architecture.endswith("ForSequenceClassification"):
        n = config.num_labels
        if n < 2 or config.problem_type not in (None, "single_label_classification"):
            raise HubError("regression and several labels for a text are not supported")
        return family.class_head | {"classes": [config.id2label[number] for number in range(n)]}
    if kind == "encoder" and not architecture.endswith(WITH_HEAD):
        return HEADLESS
    return {}


def write_config(family: Family, spec: Spec, special: Keys) -> Match:
    """Write a config and read it back: an option that changes is refused. `special`: the special
    tokens, and what else the config of an imported model had."""
    # the other functions assume the kinds of the family
    kinds = {name: value for name, value in family.spec.items() if name.endswith("kind")}
    refuse_changes(spec, spec | kinds)

    config_class = load_transformers().CONFIG_MAPPING[family.model_type]
    defaults = config_class().to_dict()
    keys: Keys = {}
    for name, value in defaults.items():  # the defaults of a class are not this model's
        if name.endswith("_token_id"):
            keys[name] = None
        if DROPOUTS.search(name) and isinstance(value, float):
            keys[name] = spec.get("dropout", 0.0)
    keys |= special | write_keys(family, spec)
    keys |= family.write_position(spec | special) | family.write(spec | special)
    if classes := spec.get("classes"):
        keys["id2label"] = dict(enumerate(classes))
        keys["label2id"] = {label: number for number, label in enumerate(classes)}

    for name, value in keys.items():  # the classes reject an integer for a float
        if type(value) is int and isinstance(defaults.get(name), float):
            keys[name] = float(value)

    with naming("config.json"):
        config = config_class(**keys)
    config.architectures = [Match(family, spec, config).model_class().__name__]  # tells the head
    upgraded = read_config(family, config)
    refuse_changes(spec, upgraded)
    return Match(family, upgraded, config)


def write_keys(family: Family, spec: Spec) -> Keys:
    """The reverse of read_keys()."""
    spec = with_kv_heads(spec)
    keys: Keys = {}
    for name, options in family.keys.items():
        values = [spec.get(option) for option in options.split()]
        if not values:
            continue
        # one flag there may be several here; reading it back finds a contradiction
        value = any(values) if isinstance(values[0], bool) else values[0]
        known = family.values.get(name, {value: value})
        for there, here in known.items():
            if here == value:
                keys.setdefault(name, there)  # the first, if several mean the same
    return keys


def with_kv_heads(spec: Spec) -> Spec:
    """The spec, and the number of key/value heads, which files have."""
    return spec | {KV_HEADS: spec["n_heads"] // spec["attention.queries_per_kv"]}


def refuse_changes(spec: Spec, other: Spec) -> None:
    """Refuse changes of options that change logits."""
    for name in spec | other:
        before = spec.get(name)
        after = other.get(name)
        is_allowed = LOSSLESS_IF.get(name, {}).items() <= spec.items()
        is_lossless = is_allowed and LOSSLESS_UPGRADES.get(name) == (before, after)
        if before != after and not is_lossless and name not in FREE:
            ours = json.dumps(before)
            theirs = json.dumps(after)
            raise HubError(f"model.{name} is {ours:.70}; only {theirs:.70} is supported")
