"""One plain transformer, every family.

Read along the way of a batch: decoder.py, stack.py, block.py, attention.py, attend.py; then the small parts:
position.py, feedforward.py, norm.py, embedding.py, head.py, cache.py; then loss.py and generate.py, and how
it is all made: init.py, build.py, config.py. `python -m model.shapes` prints that way with every shape.

A name that ends in capitals says its axes, as q_BHTD does; a bare x is always (B, T, C).
"""

import torch

from model.config import EncoderSizes, ModelConfig
from model.decoder import Decoder
from model.encoder import Encoder
from model.encoder_decoder import EncoderDecoder
from model.init import initialise

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

TOPOLOGIES = {"decoder": Decoder, "encoder": Encoder, "encoder_decoder": EncoderDecoder}


def build_model(config: ModelConfig, vocab_size: int, seed: int = 0):
    """A new model: the same for the same seed, whatever else has been drawn before."""
    check(config)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        model = TOPOLOGIES[config.kind](config, vocab_size)
        model.head.tie(model.embedding)
        initialise(model, config.init)
    return model


def check(config):
    """What no single part can see."""
    if config.kind not in TOPOLOGIES:
        raise ValueError(f"model.kind is {config.kind!r}; choose one of: {', '.join(TOPOLOGIES)}")
    for size in ("d_model", "n_layers", "n_heads", "context"):
        if getattr(config, size) < 1:
            raise ValueError(f"model.{size} must be at least 1 and is {getattr(config, size)}")
    if not 0 <= config.dropout < 1:
        raise ValueError(f"model.dropout must be from 0 to below 1 and is {config.dropout}")
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
    if config.kind != "encoder" and config.embedding.get("token_types"):
        raise ValueError(
            f"model.embedding.token_types tells an encoder's texts apart; model.kind is {config.kind}"
        )
