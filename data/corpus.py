"""Builds the loaders of a config: its source, objective, tokenizer and corpus."""

from typing import Any, NamedTuple

from configs.cli import expand_user
from configs.compose import CONFIGS, read_yaml
from configs.registry import build
from configs.schema import Config
from data.chat import fit_to_chat
from data.loader import TokenLoader
from data.mix import SOURCES, Mix, load_mix  # the last file that adds to SOURCES
from data.objectives import OBJECTIVES, Classify, Objective
from data.pairs import PairLoader
from data.prepare import prepare
from data.sources import Source
from data.splits import HeldOut
from data.tokenizers.huggingface import drop_template
from data.tokenizers.tokenizer import Tokenizer
from data.tokenizers.train import TRAINERS, Pretrained

REPLACEABLE = ("start", "pad")  # `end` takes their place in a tokenizer that lacks them


class Loaders(NamedTuple):
    objective: Objective
    objective_settings: dict  # those of the config, or what objective=auto stands for
    content_hash: str  # of the tokens, the tokenizer and all options
    tokenizer: Tokenizer
    train: TokenLoader | PairLoader
    validation: TokenLoader | PairLoader


def build_data(config: Config) -> tuple[Source, Objective, dict]:
    """Returns (source, objective, the settings of the objective, which replace objective=auto); no
    text is read."""
    source = build("data", SOURCES, config.data)
    architecture = config.model.kind
    node = config.objective
    if node.get("kind") == "auto":
        node = choose_objective(source.input_kind, architecture)

    shared = {
        "context_length": config.model.context_length,
        "architecture": architecture,
        "document_mask": source.document_mask,
        "classes": config.model.classes,
    }
    objective = build("objective", OBJECTIVES, node, shared)

    if architecture not in objective.architectures or objective.input_kind != source.input_kind:
        needed = " or ".join(objective.architectures)
        raise ValueError(
            f"objective={node['kind']} needs {objective.input_kind} and a model whose "
            f"kind is {needed}; data={config.data['kind']} gives {source.input_kind}, and this model "
            f"is of the kind {architecture}; for text, objective=auto works with every model"
        )

    if config.model.classes and objective.input_kind != "labels":
        raise ValueError("this model has classes: it needs a data.label, or another init_from")

    # an imported model may have it before it has classes
    is_chosen = config.model.head.get("pooling") and not config.init_from
    if is_chosen and [source.input_kind, architecture] != ["labels", "encoder"]:
        raise ValueError("model.head.pooling is for model.kind=encoder and a data.label")

    if source.document_mask and not hasattr(objective, "document_mask"):
        raise ValueError(f"data.document_mask=true needs objective=next_token, not {node['kind']}")
    return source, objective, node


def choose_objective(input_kind: str, architecture: str) -> dict:
    """The first built-in objective that fits; else one for this kind of data, so that build_data
    can say what does not fit."""
    known = []

    for name, kind in OBJECTIVES.items():
        path = CONFIGS / f"objective/{name}.yaml"
        if kind.input_kind == input_kind and path.exists():
            known.append(path)
            if architecture in kind.architectures:
                return read_yaml(path)
    if not known:
        raise ValueError(f"no objective of ours reads {input_kind}; set objective=")
    return read_yaml(known[0])


def load_data(config: Config, tokenizer: Tokenizer | None = None) -> Loaders:
    """The loaders of a config; `tokenizer` is that of a pretrained model."""
    source, objective, node = build_data(config)
    expand_user(source.cache).mkdir(parents=True, exist_ok=True)

    # what makes the tokenizer: one of a pretrained model is only fitted to the data
    if tokenizer:
        trainer = fit_to(objective, tokenizer)
    else:
        trainer = build("tokenizer", TRAINERS, config.tokenizer)

    def load(one: Source, trainer: Any, seed: Any, held_out: HeldOut | None = None) -> Loaders:
        """The loaders of one source, which may be one of a mix."""
        verify = bool(config.resume)  # then all tokens must be those that the run has seen
        corpus = prepare(one, trainer, objective.specials, verify, held_out)
        options = objective, corpus.tokenizer, config.train.batch_size, seed
        kind = TokenLoader if objective.input_kind == "text" else PairLoader
        return Loaders(
            objective,
            node,
            corpus.content_hash,
            corpus.tokenizer,
            kind(corpus.train, *options),
            kind(corpus.validation, *options),
        )

    if isinstance(source, Mix):
        loaders = load_mix(source, trainer, objective.specials, config.seed, load)
    else:
        loaders = load(source, trainer, config.seed)

    if isinstance(objective, Classify):
        objective.find_classes(loaders.train.file, loaders.validation.file)
    return loaders


def fit_to(objective: Objective, tokenizer: Tokenizer) -> Pretrained:
    """A pretrained tokenizer, for data of this objective. Its template, the ids that it puts around
    any text, such as BERT's [CLS] and [SEP], is kept only for texts with labels."""
    known = {*tokenizer.specials, *REPLACEABLE}
    missing = [name for name in objective.specials if name not in known]
    if missing:
        reason = f"the tokenizer has no special token {missing[0]!r}"
        raise ValueError(f"{reason}; start from a model that was trained with this objective")

    if objective.input_kind != "labels":
        drop_template(tokenizer)

    if objective.input_kind == "chat" and tokenizer.text:
        fit_to_chat(tokenizer)
    return Pretrained(tokenizer.state())
