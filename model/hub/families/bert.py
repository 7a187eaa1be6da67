"""BERT; ELECTRA's generator, whose head has other names; DistilBERT, where only names differ.
RoBERTa and its relatives have positions that begin after the padding's. ModernBERT has packed
matrices, and windows in two of three layers, which have a rope of their own."""

from typing import Any

from configs.errors import HubError
from model.hub.families.llama import GATED
from model.hub.families.positions import read_layers, write_ropes
from model.hub.family import LINEAR, SIZES, Family, Keys
from model.hub.spec import ACTIVATIONS, BASE, POST_NORM, Spec
from model.hub.tensors import QKV, Table, TensorRule, columns, packed, skip_rows

NAMES = """
bert.embeddings.word_embeddings                    embedding.table
bert.embeddings.token_type_embeddings              embedding.types
bert.embeddings.LayerNorm                          stack.embedding_norm
bert.encoder.layer.*.attention.self.query          stack.blocks.*.attention.query
bert.encoder.layer.*.attention.self.key            stack.blocks.*.attention.key
bert.encoder.layer.*.attention.self.value          stack.blocks.*.attention.value
bert.encoder.layer.*.attention.output.dense        stack.blocks.*.attention.out
bert.encoder.layer.*.attention.output.LayerNorm    stack.blocks.*.attention_norm
bert.encoder.layer.*.intermediate.dense            stack.blocks.*.ffn.up
bert.encoder.layer.*.output.dense                  stack.blocks.*.ffn.out
bert.encoder.layer.*.output.LayerNorm              stack.blocks.*.ffn_norm
"""
HEAD = """
cls.predictions.transform.dense                    head.transform.dense
cls.predictions.transform.LayerNorm                head.transform.norm
cls.predictions.decoder                            head.map
bert.embeddings.position_embeddings                stack.position.table
"""
# BERT's pooler, and a linear map
POOLER = LINEAR | {"head.mlm_transform": "tanh", "head.mlm_norm": False, "head.bias": True}
BERT = Family(
    model_type="bert",
    spec=BASE | {"kind": "encoder", "position.kind": "learned", **POST_NORM},
    keys={
        **SIZES,
        "intermediate_size": "ffn.d_ff",
        "hidden_act": "ffn.kind head.mlm_transform",
        "layer_norm_eps": "norm.eps",
        "type_vocab_size": "embedding.type_vocab_size",
        "hidden_dropout_prob": "dropout",
    },
    values={"hidden_act": ACTIVATIONS},
    write=lambda spec: {"type_vocab_size": spec["embedding.type_vocab_size"] or 1},
    names=NAMES + HEAD,
    optional=r"(predictions|lm_head)\.bias",  # a second name of the decoder's bias, if it is tied
    class_head=POOLER,
    class_names="bert.pooler.dense head.transform.dense classifier head.map",
)
POSITIONS = "roberta.embeddings.position_embeddings stack.position.table"
ROBERTA_HEAD = """
lm_head.dense                                      head.transform.dense
lm_head.layer_norm                                 head.transform.norm
lm_head.decoder                                    head.map
"""


def read_roberta(config: Any, spec: Spec) -> Spec:
    """The context length: positions begin after pad_token_id."""
    return {"context_length": spec["context_length"] - config.pad_token_id - 1}


def write_roberta(spec: Spec) -> Keys:
    if spec.get("pad_token_id") is None:
        raise HubError("positions are counted from pad_token_id; this tokenizer has no padding")
    rows = spec["context_length"] + spec["pad_token_id"] + 1
    return {"max_position_embeddings": rows, **BERT.write(spec)}


ROBERTA = BERT.derive(
    "roberta",
    spec={"head.mlm_transform": "gelu"},
    keys={"hidden_act": "ffn.kind"},
    read=read_roberta,
    write=write_roberta,
    names=NAMES.replace("bert.", "roberta.") + ROBERTA_HEAD,
    rules=lambda spec, config: skip_rows(config.pad_token_id + 1, POSITIONS),
    class_names="classifier.dense head.transform.dense classifier.out_proj head.map",
)
XLM_ROBERTA = ROBERTA.derive("xlm-roberta")
CAMEMBERT = ROBERTA.derive("camembert")
ELECTRA_HEAD = """
electra.embeddings.position_embeddings             stack.position.table
generator_predictions.dense                        head.transform.dense
generator_predictions.LayerNorm                    head.transform.norm
generator_lm_head                                  head.map
"""
ELECTRA = BERT.derive(
    "electra",
    spec=ROBERTA.spec,
    keys={**ROBERTA.keys, "embedding_size": "d_model"},
    names=NAMES.replace("bert.", "electra.") + ELECTRA_HEAD,
    class_head=POOLER | {"head.mlm_transform": "gelu"},
    class_names=ROBERTA.class_names,
)
DISTILBERT_NAMES = """
distilbert.embeddings.word_embeddings                embedding.table
distilbert.embeddings.position_embeddings            stack.position.table
distilbert.embeddings.LayerNorm                      stack.embedding_norm
distilbert.transformer.layer.*.attention.q_lin       stack.blocks.*.attention.query
distilbert.transformer.layer.*.attention.k_lin       stack.blocks.*.attention.key
distilbert.transformer.layer.*.attention.v_lin       stack.blocks.*.attention.value
distilbert.transformer.layer.*.attention.out_lin     stack.blocks.*.attention.out
distilbert.transformer.layer.*.sa_layer_norm         stack.blocks.*.attention_norm
distilbert.transformer.layer.*.ffn.lin1              stack.blocks.*.ffn.up
distilbert.transformer.layer.*.ffn.lin2              stack.blocks.*.ffn.out
distilbert.transformer.layer.*.output_layer_norm     stack.blocks.*.ffn_norm
vocab_transform                                      head.transform.dense
vocab_layer_norm                                     head.transform.norm
vocab_projector                                      head.map
"""
DISTILBERT = Family(
    model_type="distilbert",
    spec=BERT.spec | {"norm.eps": 1e-12},
    keys={
        **SIZES,
        "hidden_dim": "ffn.d_ff",
        "activation": "ffn.kind head.mlm_transform",
        "dropout": "dropout",
    },
    values={"activation": ACTIVATIONS},
    names=DISTILBERT_NAMES,
    class_head=POOLER | {"head.mlm_transform": "relu"},
    class_names="pre_classifier head.transform.dense classifier head.map",
)
MODERN_NAMES = """
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


def modern_rules(spec: Spec, config: Any) -> Table:
    table = {
        "model.layers.*.attn.Wqkv": packed(QKV),
        "model.layers.*.mlp.Wi": packed(("ffn.gate", "ffn.up")),
    }
    if config.classifier_bias:
        return table | columns("head.dense head.transform.dense")
    return table | {"head.dense.weight": NO_BIAS}


def write_modern(spec: Spec) -> Keys:
    keys = write_ropes(spec)
    return keys | {"local_attention": keys.pop("sliding_window", 128)}


MODERNBERT = Family(
    model_type="modernbert",
    spec=BASE
    | {"kind": "encoder", "position.kind": "rope", "block.kind": "modernbert"}
    | {"embedding_norm": True},
    keys={
        **SIZES,
        "intermediate_size": "ffn.d_ff",
        "hidden_activation": "ffn.kind",
        "classifier_activation": "head.mlm_transform",
        "classifier_pooling": "head.pooling",
        "norm_eps": "norm.eps",
        "norm_bias": "norm.bias",
        "attention_bias": "attention.bias attention.o_bias",
        "mlp_bias": "ffn.bias",
        "decoder_bias": "head.bias",
    },
    values={
        "hidden_activation": GATED,
        "classifier_activation": ACTIVATIONS,
        "classifier_pooling": {"cls": None, "mean": "mean"},
    },
    names=MODERN_NAMES,
    rules=modern_rules,
    write=lambda spec: {"classifier_bias": True},
    read_position=read_layers,
    write_position=write_modern,
    note="its head has a bias here, which training changes",
    class_head={"head.bias": True, "head.tie_weights": False},
    class_names="head.norm head.transform.norm classifier head.map",
)
