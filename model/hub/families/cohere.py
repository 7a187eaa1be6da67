"""Cohere (Command R, Aya): Llama with layernorm without bias, one norm for attention and
feed-forward, rope on neighboring channels, and scaled logits."""

from torch import Tensor

from configs.registry import Positive, check_value
from model.hub.families.llama import BIAS, DECODER_KEYS, HEAD_DIM, LLAMA, NAMES, read, write
from model.hub.family import HFConfig, Key
from model.hub.spec import Spec
from model.hub.tensors import Table, columns, elementwise, scaled

LOGIT_SCALE = 0.0625


def tensors(spec: Spec, hf_config: HFConfig) -> Table:
    pairs = spec["attention.head_dim"] // 2

    def to_halves(rows: Tensor) -> Tensor:
        return rows.unflatten(0, (-1, pairs, 2)).transpose(1, 2).flatten(0, 2)

    def to_pairs(rows: Tensor) -> Tensor:
        return rows.unflatten(0, (-1, 2, pairs)).transpose(1, 2).flatten(0, 2)

    table = columns(NAMES)
    for part in ("query", "key"):
        name = f"stack.blocks.*.attention.{part}"
        table[f"model.layers.*.self_attn.{part[0]}_proj"] = elementwise(name, to_halves, to_pairs)
    table["model.norm"] = scaled("stack.final_norm", hf_config.get("logit_scale", LOGIT_SCALE))
    return table


def read_cohere(hf_config: HFConfig, spec: Spec) -> Spec:
    check_value("logit_scale", hf_config.get("logit_scale", LOGIT_SCALE), Positive)
    return read(hf_config, spec, default_theta=500000.0)


COHERE = LLAMA._replace(
    model_type="cohere",
    architecture="CohereForCausalLM",
    spec=LLAMA.spec | {"norm.kind": "layernorm", "block.kind": "parallel_shared"},
    keys={
        **DECODER_KEYS,
        **BIAS,
        "head_dim": HEAD_DIM,
        "layer_norm_eps": Key("norm.eps", Positive, 1e-5),
        "tie_word_embeddings": Key("head.tie_weights", bool, True),
    },
    required={"use_qk_norm": False},
    ignored=f"{LLAMA.ignored} logit_scale model_max_length",
    read=read_cohere,
    write=lambda spec, ids: write(spec, ids) | {"logit_scale": 1.0},
    tensors=tensors,
)
