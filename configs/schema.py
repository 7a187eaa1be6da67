"""Schema: the config as typed data. Defaults are in the YAML files; those here are for settings
that the model of an older run lacks. A part is a dict, which the class of its `kind` checks."""

from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from configs.registry import BelowOne, Bounds, Count, Natural, NonNegative, Positive, Ratio, UpToOne

IGNORE_INDEX = -100  # a target that is not predicted
Part = dict[str, Any]  # its options, and its kind if there are several
Layers = Annotated[int, Bounds(least=1, most=10_000)]


@dataclass
class EncoderSizes:
    d_model: Count | None  # null: same as the decoder
    n_layers: Layers | None
    n_heads: Count | None


@dataclass
class ModelConfig:
    kind: str
    d_model: Count
    n_layers: Layers
    n_heads: Count
    context_length: Count
    dropout: BelowOne
    embedding: Part
    embedding_norm: bool
    position: Part
    block: Part
    norm: Part
    attention: Part
    cross_attention: Part | None
    ffn: Part
    head: Part
    encoder: EncoderSizes
    init: str
    layers: list[str] | None = None  # a pattern of layer_kinds, such as [window, full]
    layer_kinds: dict = field(default_factory=dict)
    bigrams: Count | None = None  # rows of their table
    classes: list[str] | None = None  # of a classifier, in the order of its logits


@dataclass
class TrainConfig:
    steps: Natural | None
    tokens: Count | None
    epochs: Positive | None
    minutes: Positive | None
    batch_size: Count
    micro_batch_size: Count | Literal["auto"]
    recompute: Literal["none", "block"]
    grad_clip: NonNegative
    patience: Count | None


@dataclass
class EvalConfig:
    every: Count | None
    max_examples: Count


@dataclass
class CheckpointConfig:
    every: Count | None
    keep: Count


@dataclass
class LogConfig:
    every: Count


@dataclass
class EMAConfig:
    decay: Ratio | None


@dataclass
class MetricsConfig:
    names: list[str]
    every: Count


@dataclass
class SampleConfig:
    every: Count | None


@dataclass
class WandbConfig:
    mode: Literal["disabled", "offline", "online"]
    project: str


@dataclass
class LossConfig:
    label_smoothing: BelowOne
    z_loss: NonNegative


@dataclass
class PlanConfig:
    gpu: str | int | None
    world: Count
    mfu: UpToOne
    price: NonNegative


@dataclass
class Config:
    name: str | None
    resume: bool | Literal["auto"]
    init_from: str | None
    parts: str | None
    seed: Natural
    device: str
    precision: Literal["auto", "fp32", "bf16", "fp16"]
    compile: bool | Literal["auto"]
    deterministic: bool
    parallel: Literal["auto", "none", "ddp", "fsdp"]
    dry_run: bool
    ddp_timeout: Positive
    debug: bool
    model: ModelConfig
    data: Part
    tokenizer: Part
    objective: Part
    optimizer: Part
    schedule: Part
    train: TrainConfig
    loss: LossConfig
    ema: EMAConfig
    plan: PlanConfig
    eval: EvalConfig
    metrics: MetricsConfig
    checkpoint: CheckpointConfig
    log: LogConfig
    sample: SampleConfig
    wandb: WandbConfig
    adapt: Part
