"""The config of a model: plain data without defaults, which live in configs/. A part is a dict with its
kind."""

from dataclasses import dataclass
from typing import Any


@dataclass
class EncoderSizes:
    """The encoder of an encoder-decoder, where it differs from the decoder."""

    d_model: int | None
    n_layers: int | None
    n_heads: int | None


@dataclass
class ModelConfig:
    kind: str
    d_model: int
    n_layers: int
    n_heads: int
    context: int
    dropout: float
    embedding: dict[str, Any]
    embedding_norm: bool
    position: dict[str, Any]
    block: dict[str, Any]
    norm: dict[str, Any]
    attention: dict[str, Any]
    cross_attention: dict[str, Any] | None
    ffn: dict[str, Any]
    head: dict[str, Any]
    encoder: EncoderSizes
    init: str
