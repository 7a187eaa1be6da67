"""Family: a model that both libraries know. Most of it is data: which key of config.json is which fact, which
tensor is which. One table serves both directions."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import NamedTuple

from configs.errors import HubError
from model.hub.spec import LOSSLESS_UPGRADES

NOTHING = MappingProxyType({})
# keys of config.json that no logit depends on
IGNORED_KEYS = set(
    """
    architectures model_type transformers_version torch_dtype dtype _name_or_path name_or_path auto_map
    vocab_size use_cache use_return_dict return_dict output_attentions output_hidden_states output_past
    torchscript initializer_range initializer_factor init_std is_encoder_decoder problem_type id2label
    label2id num_labels _num_labels bos_token_id eos_token_id pad_token_id sep_token_id cls_token_id
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


# keys that no logit depends on as long as they say this
IGNORED_IF = {
    "is_llama_config": True, "rope_interleaved": False, "is_decoder": False, "add_cross_attention": False,
    "tf_legacy_loss": False, "use_bfloat16": False, "pruned_heads": {}, "tie_encoder_decoder": False,
}  # fmt: skip
FRACTIONS = {"norm.eps", "head.logit_softcap", "dropout"}
WHOLE = set("d_model n_layers n_heads context width head_dim v_head_dim type_vocab_size buckets".split())  # noqa: SIM905


class Family(NamedTuple):
    """`facts` hold for every model of the family. `keys` maps a key of config.json to a fact, or to several
    that must agree; `words` says what values are called there, and `missing` what a config.json means that
    lacks a key (a function is asked, and takes null for lacking). `needs` has the only values that are
    understood."""

    model_type: str
    architecture: str
    auto: str
    init: str  # of a new model like it
    facts: dict
    keys: dict
    tensors: Callable  # of facts and config.json: their modules or tensors, and ours
    words: Mapping = NOTHING
    missing: Mapping = NOTHING
    needs: Mapping = NOTHING
    unread: tuple = ()  # more keys that no logit depends on
    read: Callable = lambda theirs, facts: {}  # facts that no key says by itself
    write: Callable = lambda facts, theirs: {}  # and the keys for them
    prefix: str = ""  # of all tensors but those of the head; a file of the headless class lacks it
    aliases: Mapping = NOTHING  # tensors that may stand there a second time
    fallback: Mapping = NOTHING  # what to read in place of a tensor that is not there; None: zeros
    spare: tuple = ()  # patterns of tensors that may stand there and have no part in the logits


def names_of(value):
    return (value,) if isinstance(value, str) else value


def value_of(family, theirs, key):
    value, default = theirs.get(key), family.missing.get(key, ...)
    if callable(default):
        value = default(theirs) if value is None else value
    elif key not in theirs:
        value = default
    if value is ...:
        raise HubError(f"config.json of a {family.model_type} model has no {key}")
    if words := family.words.get(key):
        if value not in list(words):
            raise HubError(f"config.json: {key} is {value!r}; known are {', '.join(map(str, words))}")
        value = words[value]
    for name in names_of(family.keys[key]):
        check_number(key, name, value)
    return value


def check_number(key, name, value):
    if name.rpartition(".")[2] in WHOLE and type(value) is not int:
        raise HubError(f"config.json: {key} is {value!r}; expected a whole number")
    if name in FRACTIONS and value is not None and type(value) not in (int, float):
        raise HubError(f"config.json: {key} is {value!r}; expected a number")


def spec_from_hf(family, theirs):
    """config.json as facts. What matters and is not understood is refused by name."""
    facts, said_by = dict(family.facts), {}
    for key, understood in family.needs.items():
        if theirs.get(key, understood) != understood:
            raise HubError(f"config.json: {key} is {theirs[key]!r}; only {understood!r} is supported")
    for key, names in family.keys.items():
        value = value_of(family, theirs, key)
        for name in names_of(names):
            if facts.get(name, value) != value and name != "dropout":
                raise HubError(
                    f"config.json: {key} is {value!r} and {said_by.get(name, 'the family')} asks for "
                    f"{facts[name]!r}, but one model.{name} serves both"
                )
            facts.setdefault(name, value)
            said_by[name] = key
    facts |= family.read(theirs, facts)
    known = {*IGNORED_KEYS, *family.keys, *family.needs, *family.unread}
    spoken = {
        key: value for key, value in theirs.items() if value is not None and value != IGNORED_IF.get(key)
    }
    if odd := sorted(set(spoken) - known):
        raise HubError(f"config.json: {odd[0]} is {theirs[odd[0]]!r}, which this import does not understand")
    return facts


class FamilyMatch(NamedTuple):
    """How a model goes into a family: its config.json, its facts there, and the options in the way."""

    family: Family
    theirs: dict
    facts: dict
    obstacles: list[str]

    @property
    def distance(self):
        """Another kind of model is farther off than another kind of part, and that than another option; what
        cannot even be said comes between the first two."""
        weights = {"model.kind is": 1000, ".kind is": 10, "model.": 1, "": 100}
        return sum(next(n for sign, n in weights.items() if sign in said) for said in self.obstacles)


def to_hf_config(family, facts, ids):
    """config.json for these facts, as far as it can say them."""
    theirs = {"model_type": family.model_type, "architectures": [family.architecture], **ids}
    for key, names in family.keys.items():
        values = [facts[name] for name in names_of(names) if name in facts]
        value = values and (any(values) if all(isinstance(v, bool) for v in values) else values[0])
        words = {ours: word for word, ours in reversed(family.words.get(key, {}).items())}
        if values and (not words or value in words):
            value = float(value) if names in FRACTIONS and value is not None else value
            theirs[key] = words.get(value, value)
    return theirs | family.write(facts, theirs)


def match(family, facts, ids):
    """What is written is read back, so that nothing is lost unnoticed: a fact that comes back another one is
    lifted or stands in the way. `ids` are config.json's special tokens."""
    kinds = [name for name in family.facts if name.endswith("kind")]
    odd = diff(facts, family.facts, [name for name in kinds if name in facts])
    if odd := [*odd, *inexpressible(family, facts)]:
        return FamilyMatch(family, {}, facts, [mismatch(family, *found) for found in odd])
    try:
        lifted = facts | upgrades(facts, family.facts)
        lifted |= upgrades(lifted, spec_from_hf(family, to_hf_config(family, lifted, ids)))
        theirs = to_hf_config(family, lifted, ids)
        wanted = spec_from_hf(family, theirs)
        odd = diff(lifted, wanted, {**lifted, **wanted})
    except HubError as error:
        return FamilyMatch(family, {}, facts, [str(error)])
    return FamilyMatch(family, theirs, lifted, [mismatch(family, *found) for found in odd])


def inexpressible(family, facts):
    """(name, fact, what there are words for) of each kind that config.json has no word for."""
    for key, words in family.words.items():
        known = dict.fromkeys(words.values())
        kinds = [name for name in names_of(family.keys[key]) if name.endswith("kind")]
        yield from (
            (name, facts.get(name), " or ".join(known)) for name in kinds if facts.get(name) not in known
        )


def upgrades(facts, wanted):
    found = diff(facts, wanted, facts.keys() & wanted.keys())
    return {name: new for name, old, new in found if LOSSLESS_UPGRADES.get(name) == (old, new)}


def diff(facts, others, names):
    """(name, fact, other), but for dropout, of which no logit knows."""
    each = ((name, facts.get(name), others.get(name)) for name in names if name != "dropout")
    return [(name, fact, other) for name, fact, other in each if fact != other]


def mismatch(family, name, ours, theirs):
    return f"model.{name} is {spell(ours)} and {family.architecture} has {spell(theirs)}"


def spell(value):
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
