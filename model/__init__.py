"""One plain transformer, every family.

Read along the way of a batch: decoder.py, stack.py, block.py, attention.py, attend.py; then the small parts:
position.py, feedforward.py, norm.py, embedding.py, head.py, cache.py; then loss.py and how it is all made:
init.py, build.py, config.py; then how a trained one writes: generate.py, sampling.py, beams.py.
`python -m model.shapes` prints that way with every shape.

A name that ends in capitals says its axes, as q_BHTD does; a bare x is always (B, T, C).
"""

from dataclasses import asdict

import torch

from model.build import fits, require_above
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

TOPOLOGIES = {topology.kind: topology for topology in (Decoder, Encoder, EncoderDecoder)}


def build_model(config: ModelConfig, vocab_size: int, seed: int = 0):
    """A new model: the same for the same seed, whatever else has been drawn before."""
    check_config(config)
    if not fits(vocab_size, int) or vocab_size < 1:
        raise ValueError(f"vocab_size must be a whole number from 1 on and is {vocab_size!r}")
    if not fits(seed, int) or not 0 <= seed < 2**64:
        raise ValueError(f"seed must be a whole number from 0 to below 2**64 and is {seed!r}")
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        model = TOPOLOGIES[config.kind](config, vocab_size)
        model.head.tie(model.embedding)
        initialise(model, config.init)
    return model


def check_config(config):
    """What no single part can see."""
    if config.kind not in TOPOLOGIES:
        raise ValueError(f"model.kind is {config.kind!r}; choose one of: {', '.join(TOPOLOGIES)}")
    sizes = {size: getattr(config, size) for size in ("d_model", "n_layers", "n_heads", "context")}
    sizes |= {f"encoder.{size}": n for size, n in asdict(config.encoder).items()}
    require_above(0, **{f"model.{size}": n for size, n in sizes.items()})
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
    adds = config.embedding.get("token_types") or config.position.get("kind") in ("learned", "sinusoidal")
    if config.embedding_norm and config.embedding.get("scaled") and not adds:
        raise ValueError("model.embedding.scaled is undone by model.embedding_norm: set one of them to false")
    if config.kind != "encoder" and config.embedding.get("token_types"):
        raise ValueError(
            f"model.embedding.token_types tells an encoder's texts apart; model.kind is {config.kind}"
        )
