"""Build: a model from its config, with weights that depend on the seed alone."""

from contextlib import nullcontext
from dataclasses import asdict

import torch
from torch.overrides import TorchFunctionMode

from configs.registry import check_value, from_dict
from configs.schema import EncoderSizes, ModelConfig, Seed, Size
from model.init import initialize_weights
from model.transformer import Decoder, Encoder, EncoderDecoder

ARCHITECTURES = {architecture.kind: architecture for architecture in (Decoder, Encoder, EncoderDecoder)}


def build_model(config: ModelConfig, vocab_size: int, seed: int = 0):
    """A new model. Its weights depend on the seed alone, not on the global random state."""
    check_config(config)
    check_value("vocab_size", vocab_size, Size)
    check_value("seed", seed, Seed)
    drawing = NoNormal() if torch.empty(0).is_meta else nullcontext()
    with torch.random.fork_rng(devices=[]), drawing:
        torch.default_generator.manual_seed(seed)
        model = ARCHITECTURES[config.kind](config, vocab_size)
        model.head.tie(model.embedding)
        initialize_weights(model, config.init)
    return model


class NoNormal(TorchFunctionMode):
    """Draws nothing: on the "meta" device, torch would import torch._dynamo for it, which takes 0.5 s."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        return kwargs["tensor"] if function is torch.nn.init.normal_ else function(*args, **(kwargs or {}))


def check_config(config):
    """Checks that involve more than one part of the model."""
    kind, embedding = config.kind, config.embedding
    if kind not in ARCHITECTURES:
        raise ValueError(f"model.kind is {kind!r}; choose one of: {', '.join(ARCHITECTURES)}")
    from_dict(ModelConfig, asdict(config), "model.")
    if kind == "encoder_decoder" and config.cross_attention is None:
        raise ValueError(f"an {kind} needs cross-attention; add attention@model.cross_attention=mha")
    if kind != "encoder_decoder" and config.cross_attention is not None:
        article = "an" if kind == "encoder" else "a"
        raise ValueError(f"{article} {kind} has no encoder output; remove model.cross_attention")
    if kind != "encoder_decoder" and config.encoder != EncoderSizes(None, None, None):
        raise ValueError(f"model.encoder sets the encoder of an encoder_decoder; model.kind is {kind}")
    if kind != "encoder" and embedding.get("type_vocab_size"):
        raise ValueError(f"model.embedding.type_vocab_size is for encoders; model.kind is {kind}")
    added = embedding.get("type_vocab_size") or config.position.get("kind") in ("learned", "sinusoidal")
    if config.embedding_norm and embedding.get("scale_by_sqrt_d") and not added:
        raise ValueError("model.embedding_norm undoes model.embedding.scale_by_sqrt_d: set one to false")
