"""ModernBERT: an encoder with windows in two of three layers, which have a rope of their own, and
with packed matrices."""

from typing import Any

from model.hub.families.layers import read_layers, write_ropes
from model.hub.families.llama import GATED
from model.hub.family import SIZES, Family, Keys
from model.hub.spec import ACTIVATIONS, BASE, Spec
from model.hub.tensors import QKV, Table, TensorRule, columns, packed

NAMES = """
model.embeddings.tok_embeddings      embedding.table
model.embeddings.norm                stack.embedding_norm
model.layers.*.attn_norm             stack.blocks.*.attention_norm
model.layers.*.attn.Wo               stack.blocks.*.attention.out
model.layers.*.mlp_norm              stack.blocks.*.ffn_norm
model.layers.*.mlp.Wo                stack.blocks.*.ffn.out
model.final_norm                     stack.final_norm
head.norm                            head.transform.norm
decoder                              head.map
"""
# without classifier_bias, the bias is zero
NO_BIAS = TensorRule(
    ("head.transform.dense.weight", "head.transform.dense.bias"),
    lambda weight: [weight, weight.new_zeros(len(weight))],
    lambda parts: parts[0],
)


def rules(spec: Spec, config: Any) -> Table:
    table = {
        "model.layers.*.attn.Wqkv": packed(QKV),
        "model.layers.*.mlp.Wi": packed(("ffn.gate", "ffn.up")),
    }
    if config.classifier_bias:
        return table | columns("head.dense head.transform.dense")
    return table | {"head.dense.weight": NO_BIAS}


def write(spec: Spec) -> Keys:
    keys = write_ropes(spec)
    return keys | {"local_attention": keys.pop("sliding_window", 128)}


MODERNBERT = Family(
    model_type="modernbert",
    architecture="ModernBertForMaskedLM",
    spec=BASE
    | {"kind": "encoder", "position.kind": "rope", "block.kind": "modernbert"}
    | {"embedding_norm": True},
    keys={
        **SIZES,
        "hidden_activation": "ffn.kind",
        "classifier_activation": "head.mlm_transform",
        "norm_eps": "norm.eps",
        "norm_bias": "norm.bias",
        "attention_bias": "attention.bias attention.o_bias",
        "mlp_bias": "ffn.bias",
        "decoder_bias": "head.bias",
        "tie_word_embeddings": "head.tie_weights",
    },
    values={"hidden_activation": GATED, "classifier_activation": ACTIVATIONS},
    names=NAMES,
    rules=rules,
    write=lambda spec, special: {"classifier_bias": True},
    read_position=read_layers,
    write_position=write,
    note="its head has a bias here, which training changes",
)
