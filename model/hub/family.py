"""Family: a model that both libraries know. Most of it is data: which key of config.json is which fact, which
tensor is which. One table serves both directions."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import NamedTuple

from model.hub.errors import HubError
from model.hub.facts import LIFTS

NOTHING = MappingProxyType({})
# keys of config.json that no logit depends on
UNREAD = set(
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
    fallback: Mapping = NOTHING  # what to read in place of a tensor that is not there
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
    return value


def facts_from(family, theirs):
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
    known = {*UNREAD, *family.keys, *family.needs, *family.unread}
    if odd := sorted(key for key in set(theirs) - known if theirs[key] is not None):
        raise HubError(f"config.json: {odd[0]} is {theirs[odd[0]]!r}, which this import does not understand")
    return facts


class Fit(NamedTuple):
    """How a model goes into a family: its config.json, its facts there, and the options in the way."""

    family: Family
    theirs: dict
    facts: dict
    obstacles: list[str]

    @property
    def distance(self):
        """Another kind of part is farther off than another option of it."""
        return sum(10 if ".kind is" in obstacle else 1 for obstacle in self.obstacles)


def spelled(family, facts, ids):
    """config.json for these facts, as far as it can say them."""
    theirs = {"model_type": family.model_type, "architectures": [family.architecture], **ids}
    for key, names in family.keys.items():
        values = [facts[name] for name in names_of(names) if name in facts]
        value = values and (any(values) if all(isinstance(v, bool) for v in values) else values[0])
        words = {ours: word for word, ours in reversed(family.words.get(key, {}).items())}
        if values and (not words or value in words):
            theirs[key] = words.get(value, value)
    return theirs | family.write(facts, theirs)


def fit(family, facts, ids):
    """What is written is read back, so that nothing is lost unnoticed: a fact that comes back another one is
    lifted or stands in the way. `ids` are config.json's special tokens."""
    kinds = [name for name in family.facts if name.endswith("kind")]
    if odd := differing(facts, family.facts, [name for name in kinds if name in facts]):
        return Fit(family, {}, facts, [obstacle(family, *found) for found in odd])
    try:
        lifted = facts | lifts(facts, family.facts)
        lifted |= lifts(lifted, facts_from(family, spelled(family, lifted, ids)))
        theirs = spelled(family, lifted, ids)
        wanted = facts_from(family, theirs)
        odd = differing(lifted, wanted, {**lifted, **wanted})
    except HubError as error:
        return Fit(family, {}, facts, [str(error)])
    return Fit(family, theirs, lifted, [obstacle(family, *found) for found in odd])


def lifts(facts, wanted):
    found = differing(facts, wanted, facts.keys() & wanted.keys())
    return {name: new for name, old, new in found if LIFTS.get(name) == (old, new)}


def differing(facts, others, names):
    """(name, fact, other), but for dropout, of which no logit knows."""
    each = ((name, facts.get(name), others.get(name)) for name in names if name != "dropout")
    return [(name, fact, other) for name, fact, other in each if fact != other]


def obstacle(family, name, ours, theirs):
    return f"model.{name} is {spell(ours)} and {family.architecture} has {spell(theirs)}"


def spell(value):
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
