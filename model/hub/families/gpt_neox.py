"""GPT-NeoX (Pythia): a parallel block with two norms, rope on a part of each head, and query, key
and value in one matrix."""

import torch
from torch import Tensor

from configs.registry import BelowOne, Positive
from model.hub.families.rope import read_rope, write_rope
from model.hub.family import SIZES, Family, HFConfig, Key
from model.hub.spec import ACTIVATIONS, BASE, Spec
from model.hub.tensors import QKV, Table, TensorRule, columns

NAMES = """
gpt_neox.embed_in                               embedding.table
gpt_neox.final_layer_norm                       stack.final_norm
embed_out                                       head.map
gpt_neox.layers.*.input_layernorm               stack.blocks.*.attention_norm
gpt_neox.layers.*.post_attention_layernorm      stack.blocks.*.ffn_norm
gpt_neox.layers.*.attention.dense               stack.blocks.*.attention.out
gpt_neox.layers.*.mlp.dense_h_to_4h             stack.blocks.*.ffn.up
gpt_neox.layers.*.mlp.dense_4h_to_h             stack.blocks.*.ffn.out
"""


def packed_heads(spec: Spec) -> TensorRule:
    """The key and the value of a group follow the queries that share them."""
    sizes = [spec["attention.queries_per_kv"], 1, 1]
    n_groups = spec["n_heads"] // sizes[0]

    def unpack(weight: Tensor) -> list[Tensor]:
        groups = weight.unflatten(0, (n_groups, sum(sizes), -1))
        return [part.flatten(0, 2) for part in groups.split(sizes, 1)]

    def pack(parts: list[Tensor]) -> Tensor:
        heads = zip(parts, sizes, strict=True)
        groups = [part.unflatten(0, (n_groups, n, -1)) for part, n in heads]
        return torch.cat(groups, 1).flatten(0, 2)

    return TensorRule(tuple(f"stack.blocks.*.{name}" for name in QKV), unpack, pack)


def tensors(spec: Spec, hf_config: HFConfig) -> Table:
    return columns(NAMES) | {"gpt_neox.layers.*.attention.query_key_value": packed_heads(spec)}


def read(hf_config: HFConfig, spec: Spec) -> Spec:
    """rope_theta and partial_rotary_factor have names of their own."""
    theta, fraction = hf_config.get("rotary_emb_base"), hf_config.get("rotary_pct")
    rope = {"rope_theta": theta, "partial_rotary_factor": fraction}
    return read_rope(hf_config | rope, fraction=0.25)


def write(spec: Spec, ids: HFConfig) -> HFConfig:
    rope = write_rope(spec, is_partial=True)
    keys = {"rotary_emb_base": rope.pop("rope_theta")}
    keys["rotary_pct"] = rope.pop("partial_rotary_factor")
    return keys | rope


DECODER = {name: value for name, value in BASE.items() if name != "block.kind"}
DECODER |= {"kind": "decoder"}
NEOX = Family(
    model_type="gpt_neox",
    architecture="GPTNeoXForCausalLM",
    spec=DECODER | {"position.kind": "rope"},
    keys={
        **SIZES,
        "hidden_act": Key("ffn.kind", ACTIVATIONS, "gelu"),
        "layer_norm_eps": Key("norm.eps", Positive, 1e-5),
        "use_parallel_residual": Key("block.kind", {True: "parallel", False: "pre"}, True),
        "attention_bias": Key("attention.bias attention.o_bias", bool, True),
        "tie_word_embeddings": Key("head.tie_weights", bool, False),
        "hidden_dropout": Key("dropout", BelowOne, 0.0),
    },
    ignored="rotary_emb_base rotary_pct hidden_dropout_prob rope_scaling rope_parameters",
    implied=lambda spec: {
        "rope_theta": spec["position.rope_theta"],
        "partial_rotary_factor": spec["position.rotary_fraction"],
    },
    read=read,
    write=write,
    tensors=tensors,
    prefix="gpt_neox.",
    aliases={"embed_out.weight": "gpt_neox.embed_in.weight"},
    optional=r"gpt_neox\.layers\.\d+\.attention\.(masked_bias|bias|rotary_emb\.inv_freq)",
)
