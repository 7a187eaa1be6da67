"""From a config to loaders: its source, objective and tokenizer, and the corpus they make."""

from dataclasses import replace
from inspect import signature
from typing import Any

from configs.compose import CONFIGS, read_yaml
from configs.registry import build
from configs.schema import Config
from data.loader import Loaders
from data.objectives import OBJECTIVES, Objective
from data.prepare import load_source
from data.sources import SOURCES, Source
from data.tokenizers.tokenizer import Tokenizer
from data.tokenizers.train import TOKENIZERS, Pretrained

REPLACEABLE = ("start", "pad")  # by `end`, in a tokenizer that lacks them


def choose_objective(input_kind: str, architecture: str) -> dict[str, Any]:
    """The first of ours that fits; if none does, build_data says so of one for such data."""
    known = []
    for name in OBJECTIVES:
        path = CONFIGS / f"objective/{name}.yaml"
        if path.exists() and OBJECTIVES[name].input_kind == input_kind:
            known.append(path)
            if architecture in OBJECTIVES[name].architectures:
                return read_yaml(path)
    return read_yaml(known[0])


def build_source(config: Config) -> Source:
    """No text is read."""
    options = dict(config.data)
    options.pop("document_mask", None)  # a setting of batches
    return build("data", SOURCES, options, {})


def with_objective(config: Config) -> Config:
    """The same with the kind of objective that objective=auto means."""
    if config.objective.get("kind") != "auto":
        return config
    objective = choose_objective(build_source(config).input_kind, config.model.kind)
    return replace(config, objective=objective)


def build_data(config: Config) -> tuple[Source, Objective]:
    """The source and the objective of a config."""
    config = with_objective(config)
    source = build_source(config)
    model = config.model
    kind = config.objective.get("kind")
    masks_documents = config.data.get("document_mask", False)
    if model.prefix_lm and source.input_kind != "pairs":
        raise ValueError("model.prefix_lm is for pairs, whose sources are the prefixes")

    shared = {
        "context_length": model.context_length,
        "architecture": model.kind,
        "prefix_lm": model.prefix_lm,
        "document_mask": masks_documents,
    }
    objective: Objective = build("objective", OBJECTIVES, config.objective, shared)

    if model.kind not in objective.architectures or objective.input_kind != source.input_kind:
        raise ValueError(
            f"objective={kind} needs {objective.input_kind} and a model whose kind is "
            f"{' or '.join(objective.architectures)}; data={config.data['kind']} gives {source.input_kind}, and this model is of the kind "
            f"{model.kind}; objective=auto chooses one of ours that suits both, if there is one"
        )

    if masks_documents and "document_mask" not in signature(type(objective)).parameters:
        raise ValueError(
            f"data.document_mask=true is for objective=next_token; this is objective={kind}"
        )
    return source, objective


def load_data(config: Config, tokenizer: Tokenizer | None = None) -> Loaders:
    """The loaders of a config; `tokenizer` is that of a pretrained model. Tokens are cached in the
    folder data.cache."""
    source: Any
    source, objective = build_data(config)
    if tokenizer:
        known = {*tokenizer.specials, *REPLACEABLE}
        missing = [name for name in objective.specials if name not in known]
        if missing:
            raise ValueError(
                f"the tokenizer has no special token {missing[0]!r}; start from a model that was "
                "trained with this objective"
            )
        if objective.input_kind == "chat" and tokenizer.text:
            from data.chat import fit_to_chat

            fit_to_chat(tokenizer)
        trainer = Pretrained(tokenizer.state())
    else:
        trainer = build("tokenizer", TOKENIZERS, config.tokenizer, {})

    shared: dict[str, Any] = {
        "objective": objective,
        "batch_size": config.train.batch_size,
        "seed": config.seed,
    }
    verify = bool(config.resume)  # then all tokens must be those that the run has seen
    if source.members:
        from data.mix import load_mix

        return load_mix(source, trainer, verify, **shared)
    return load_source(source, trainer, verify, **shared)
