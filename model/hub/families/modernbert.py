"""ModernBERT: an encoder with windows in two of three layers, which have a rope of their own, and
with packed matrices."""

import torch

from configs.registry import Count, Positive, check_value
from model.hub.families.layers import (
    FULL,
    WINDOW,
    read_ropes,
    read_types,
    read_windows,
    write_ropes,
    write_windows,
)
from model.hub.families.llama import BIAS, GATED
from model.hub.family import SIZES, Family, HFConfig, Key
from model.hub.spec import ACTIVATIONS, BASE, Spec, merge_layers
from model.hub.tensors import QKV, Table, columns, elementwise, packed

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
    layer_types local_attention global_attn_every_n_layers rope_parameters global_rope_theta
    local_rope_theta classifier_bias classifier_pooling embedding_dropout mlp_dropout
    sparse_prediction sparse_pred_ignore_index deterministic_flash_attn initializer_cutoff_factor
    reference_compile repad_logits_with_grad layer_norm_eps position_embedding_type
"""
THETAS = {FULL: ("global_rope_theta", 160_000.0), WINDOW: ("local_rope_theta", 10_000.0)}


def tensors(spec: Spec, hf_config: HFConfig) -> Table:
    table = columns(NAMES)
    table["model.layers.*.attn.Wqkv"] = packed(QKV)
    table["model.layers.*.mlp.Wi"] = packed(("ffn.gate", "ffn.up"))
    if not hf_config.get("classifier_bias"):  # which the head has here
        bias = elementwise("head.transform.dense.bias", torch.zeros_like, torch.zeros_like)
        table["head.dense.bias"] = bias
    return table


def read(hf_config: HFConfig, spec: Spec) -> Spec:
    """A window has half of local_attention on each side, here and there."""
    every = hf_config.get("global_attn_every_n_layers", 3)
    check_value("global_attn_every_n_layers", every, Count)
    types = read_types(hf_config, spec, lambda layer: layer % every)
    windows = read_windows({"local_attention": 128} | hf_config, types, "local_attention")
    return merge_layers(list(map(dict.__or__, windows, read_ropes(hf_config, types, THETAS))))


def write(spec: Spec, ids: HFConfig) -> HFConfig:
    types, window = write_windows(spec)
    keys = {"layer_types": types, "local_attention": window or 128, "classifier_bias": True}
    return keys | write_ropes(spec, THETAS)


MODERNBERT = Family(
    model_type="modernbert",
    architecture="ModernBertForMaskedLM",
    spec=BASE
    | {"kind": "encoder", "position.kind": "rope", "block.kind": "modernbert"}
    | {"embedding_norm": True},
    keys={
        **SIZES,
        **BIAS,
        "hidden_activation": Key("ffn.kind", GATED, "gelu"),
        "classifier_activation": Key("head.mlm_transform", ACTIVATIONS, "gelu"),
        "norm_eps": Key("norm.eps", Positive, 1e-5),
        "norm_bias": Key("norm.bias", bool, False),
        "mlp_bias": Key("ffn.bias", bool, False),
        "decoder_bias": Key("head.bias", bool, True),
        "tie_word_embeddings": Key("head.tie_weights", bool, True),
    },
    required={"rope_scaling": None},
    ignored=IGNORED,
    read=read,
    write=write,
    tensors=tensors,
    prefix="model.",
    aliases={"decoder.weight": "model.embeddings.tok_embeddings.weight"},
    fallback={"head.dense.bias": None},
)
