"""One plain transformer, every family.

Read along the way of a batch: decoder.py, stack.py, block.py, attention.py, attend.py; then the small parts:
position.py, feedforward.py, norm.py, embedding.py, head.py, cache.py; then loss.py and how it is all made:
init.py, build.py, config.py; then how a trained one writes: generate.py, sampling.py, beams.py.
`python -m model.shapes` prints that way with every shape.

A name that ends in capitals says its axes, as q_BHTD does; a bare x is always (B, T, C).
"""

from dataclasses import asdict

import torch

from configs.registry import check_value, from_dict
from configs.schema import EncoderSizes, ModelConfig, Seed, Size
from model.init import initialise
from model.transformer import Decoder, Encoder, EncoderDecoder

LEGEND = {
    "B": "rows of the batch (1 where they share one)",
    "T": "positions of the queries",
    "S": "positions of the keys",
    "C": "width of the model, the residual stream",
    "H": "heads of the queries",
    "G": "heads of keys and values, each shared by H / G query heads",
    "J": "queries that share a head of keys and values, T * H / G",
    "D": "width of a key in a head",
    "E": "width of a value in a head",
    "W": "the heads of a position side by side, H * E",
    "R": "the part of a latent-attention key that carries the position",
    "P": "the part of it that does not: P + R = D",
    "L": "width of the latent",
    "K": "what latent attention remembers of a token, L + R",
    "F": "width within the feed-forward",
    "N": "positions that have a target",
    "V": "words of the vocabulary",
    "1": "an axis of one, to broadcast",
}

ARCHITECTURES = {topology.kind: topology for topology in (Decoder, Encoder, EncoderDecoder)}


def build_model(config: ModelConfig, vocab_size: int, seed: int = 0):
    """A new model: the same for the same seed, whatever else has been drawn before."""
    check_config(config)
    check_value("vocab_size", vocab_size, Size)
    check_value("seed", seed, Seed)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        model = ARCHITECTURES[config.kind](config, vocab_size)
        model.head.tie(model.embedding)
        initialise(model, config.init)
    return model


def check_config(config):
    """What no single part can see."""
    if config.kind not in ARCHITECTURES:
        raise ValueError(f"model.kind is {config.kind!r}; choose one of: {', '.join(ARCHITECTURES)}")
    from_dict(ModelConfig, asdict(config), "model.")
    if config.kind != "encoder_decoder" and config.cross_attention is not None:
        raise ValueError(f"a {config.kind} has no memory to look at: leave out model.cross_attention")
    if config.kind == "encoder_decoder" and config.cross_attention is None:
        raise ValueError(
            "an encoder_decoder needs model.cross_attention: attention@model.cross_attention=mha"
        )
    if config.kind != "encoder_decoder" and config.encoder != EncoderSizes(None, None, None):
        raise ValueError(
            f"model.encoder sets sizes of an encoder_decoder's encoder; model.kind is {config.kind}"
        )
    adds = config.embedding.get("type_vocab_size") or config.position.get("kind") in ("learned", "sinusoidal")
    if config.embedding_norm and config.embedding.get("scale_by_sqrt_d") and not adds:
        raise ValueError(
            "model.embedding.scale_by_sqrt_d is undone by model.embedding_norm: set one of them to false"
        )
    if config.kind != "encoder" and config.embedding.get("type_vocab_size"):
        raise ValueError(
            f"model.embedding.type_vocab_size tells an encoder's texts apart; model.kind is {config.kind}"
        )
