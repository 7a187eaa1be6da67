"""Corpus: the data, tokenizer and objective of a config become streams of batches."""

from typing import NamedTuple

from data import OBJECTIVES, SOURCES, TOKENIZERS, DataError, PairBatches, Windows, batches, prepare
from data.tokenizer import Tokenizer
from data.vocabulary import Given
from model.build import build, construct, require_above
from training.published import tokenizer_of


class Kept(NamedTuple):
    """What any data may be told: where its tokens are kept, and how much is kept for validation."""

    cache: str
    validation: float


class Streams(NamedTuple):
    """What a run trains on and what it is judged by."""

    tokenizer: Tokenizer
    train: Windows | PairBatches
    validation: Windows | PairBatches

    @property
    def name(self):
        """Of the text, its tokenizer and their options: the same only where all of them are."""
        return self.train.part.path.parent.name


def reload(config, stored, report=None):
    """For a run that goes on: the same text as before, and its own tokenizer."""
    folder = stored.place.parent.parent
    streams = load(config, report, folder if config.init_from else None)
    if streams.name == stored.state["data"] and streams.tokenizer.state() == tokenizer_of(folder).state():
        return streams
    if not any(key.partition(".")[0] == "data" for key in config.resume_allow):
        raise DataError(
            f"the text is no longer what {folder} has learned from; bring it back, or go on with what there "
            "is now by resume_allow=[data]"
        )
    return load(config, report, folder)


def load(config, report=None, run=None):
    """From text to batches; what is in the cache already is only opened. run: a folder whose tokenizer
    is taken."""
    require_above(0, **{"model.context": config.model.context})
    kept = {name: config.data[name] for name in Kept._fields if name in config.data}
    cache, validation = construct("data", Kept, kept, {})
    own = {name: value for name, value in config.data.items() if name not in kept}
    source = build("data", SOURCES, own, {"cache": cache})
    shared = {"context": config.model.context, "topology": config.model.kind}
    check(config.objective["kind"], source, config)
    objective = build("objective", OBJECTIVES, config.objective, shared)
    if run or config.init_from:
        vocabulary = Given(tokenizer_of(run or config.init_from).state())
    else:
        vocabulary = build("tokenizer", TOKENIZERS, config.tokenizer, {})
    corpus = prepare(
        source,
        vocabulary,
        objective.specials,
        cache=cache,
        validation=validation,
        report=report,
    )
    sizes = {"batch_size": config.train.batch_size, "seed": config.seed}
    parts = (corpus.train, corpus.validation)
    return Streams(corpus.tokenizer, *(batches(part, objective, corpus.tokenizer, **sizes) for part in parts))


def check(kind, source, config):
    """Whether this objective can be asked of this source and this model."""
    if kind not in list(OBJECTIVES):
        return  # build says so better
    objective, topology = OBJECTIVES[kind], config.model.kind
    if objective.reads != source.reads:
        raise ValueError(
            f"objective={kind} reads {objective.reads} and data={config.data['kind']} gives {source.reads}; "
            "objective=auto chooses the one that fits"
        )
    if topology not in objective.topologies:
        fitting = [k for k, o in OBJECTIVES.items() if o.reads == source.reads and topology in o.topologies]
        way_out = f"use objective={fitting[0]}" if fitting else "use data of plain text, such as data=text"
        able = " or ".join(objective.topologies)
        raise ValueError(f"objective={kind} needs a model whose kind is {able}, not {topology}; {way_out}")
