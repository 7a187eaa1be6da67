"""ModernBERT: an encoder with windows in two of three layers, which have a rope of their own, and
with packed matrices."""

import torch

from configs.registry import Count, Positive, check_value
from model.hub.families.layers import FULL, WINDOW, read_layers, write_layers
from model.hub.families.llama import GATED
from model.hub.family import SIZES, Family, HFConfig, Key
from model.hub.spec import ACTIVATIONS, BASE, Spec
from model.hub.tensors import QKV, Table, columns, packed

NAMES = """
model.embeddings.tok_embeddings      embedding.table
model.embeddings.norm                stack.embedding_norm
model.layers.*.attn_norm             stack.blocks.*.attention_norm
model.layers.*.attn.Wo               stack.blocks.*.attention.out
model.layers.*.mlp_norm              stack.blocks.*.ffn_norm
model.layers.*.mlp.Wo                stack.blocks.*.ffn.out
model.final_norm                     stack.final_norm
head.dense                           head.transform.dense
head.norm                            head.transform.norm
decoder                              head.map
"""
IGNORED = """
    layer_types rope_parameters classifier_pooling embedding_dropout mlp_dropout
    sparse_prediction sparse_pred_ignore_index deterministic_flash_attn initializer_cutoff_factor
    reference_compile repad_logits_with_grad layer_norm_eps position_embedding_type
"""
THETAS = {FULL: "global_rope_theta", WINDOW: "local_rope_theta"}


def rules(spec: Spec, hf_config: HFConfig) -> Table:
    table = {
        "model.layers.*.attn.Wqkv": packed(QKV),
        "model.layers.*.mlp.Wi": packed(("ffn.gate", "ffn.up")),
    }
    if not hf_config["classifier_bias"]:  # which the head has here
        bias = "head.dense.bias head.transform.dense.bias"
        table |= columns(bias, torch.zeros_like, torch.zeros_like)
    return table


def read(hf_config: HFConfig, spec: Spec) -> Spec:
    """A window has half of local_attention on each side, here and there."""
    every = hf_config["global_attn_every_n_layers"]
    check_value("global_attn_every_n_layers", every, Count)
    return read_layers(hf_config, spec, lambda layer: layer % every, "local_attention", THETAS)


MODERNBERT = Family(
    model_type="modernbert",
    architecture="ModernBertForMaskedLM",
    spec=BASE
    | {"kind": "encoder", "position.kind": "rope", "block.kind": "modernbert"}
    | {"embedding_norm": True},
    keys={
        **SIZES,
        "hidden_activation": Key("ffn.kind", GATED, "gelu"),
        "classifier_activation": Key("head.mlm_transform", ACTIVATIONS, "gelu"),
        "norm_eps": Key("norm.eps", Positive, 1e-5),
        "norm_bias": Key("norm.bias", bool, False),
        "attention_bias": Key("attention.bias attention.o_bias", bool, False),
        "mlp_bias": Key("ffn.bias", bool, False),
        "decoder_bias": Key("head.bias", bool, True),
        "tie_word_embeddings": Key("head.tie_weights", bool, True),
    },
    defaults={
        "global_attn_every_n_layers": 3,
        "local_attention": 128,
        "global_rope_theta": 160_000.0,
        "local_rope_theta": 10_000.0,
        "classifier_bias": False,
    },
    required={"rope_scaling": None},
    ignored=IGNORED,
    names=NAMES,
    rules=rules,
    read=read,
    write=lambda spec, ids: {
        "classifier_bias": True,
        **write_layers(spec, "local_attention", THETAS),
    },
    prefix="model.",
    aliases={"decoder.weight": "model.embeddings.tok_embeddings.weight"},
    fallback={"head.dense.bias": None},
)
