"""BERT; ELECTRA's generator, with a head of other names; DistilBERT, with other names alone. RoBERTa
and its relatives have positions that begin after the padding's."""

from configs.errors import HubError
from configs.registry import BelowOne, Positive
from model.hub.family import SIZES, Family, HFConfig, Key
from model.hub.spec import ACTIVATIONS, BASE, POST_NORM, Spec
from model.hub.tensors import columns, skip_rows

TIED = "head.tie_weights"
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
bert.embeddings.position_embeddings                stack.position.table
"""
# by whether the head is tied: then its bias lies beside it
MAP = {True: "bias  head.map.bias", False: "decoder  head.map"}
BERT = Family(
    model_type="bert",
    architecture="BertForMaskedLM",
    spec=BASE | {"kind": "encoder", "position.kind": "learned", **POST_NORM},
    keys={
        **SIZES,
        "hidden_act": Key("ffn.kind head.mlm_transform", ACTIVATIONS, "gelu"),
        "layer_norm_eps": Key("norm.eps", Positive, 1e-12),
        "type_vocab_size": Key("embedding.type_vocab_size", default=2),
        "tie_word_embeddings": Key("head.tie_weights", bool, True),
        "hidden_dropout_prob": Key("dropout", BelowOne, 0.1),
    },
    required={"position_embedding_type": "absolute"},
    ignored="directionality pooler_fc_size pooler_num_attention_heads pooler_num_fc_layers "
    "pooler_size_per_head pooler_type",
    write=lambda spec, ids: {
        "type_vocab_size": spec["embedding.type_vocab_size"] or 1,
        "attention_probs_dropout_prob": float(spec["dropout"]),
    },
    names=NAMES + HEAD,
    rules=lambda spec, hf_config: columns(f"cls.predictions.{MAP[spec[TIED]]}"),
    prefix="bert.",
    aliases={
        "cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight",
        "cls.predictions.decoder.bias": "cls.predictions.bias",
    },
    optional=r"bert\.pooler\..*|cls\.(seq_relationship\..*|predictions\.bias)|.*\.position_ids",
)
POSITIONS = "roberta.embeddings.position_embeddings stack.position.table"
ROBERTA_HEAD = """
lm_head.dense                                      head.transform.dense
lm_head.layer_norm                                 head.transform.norm
"""


def read_roberta(hf_config: HFConfig, spec: Spec) -> Spec:
    """Positions begin after pad_token_id."""
    rows, pad = spec["context_length"], hf_config["pad_token_id"]
    if type(pad) is not int or not 0 <= pad < rows - 1:
        raise HubError(f"none of {rows} positions is left after pad_token_id ({pad})")
    return {"context_length": rows - pad - 1}


def write_roberta(spec: Spec, ids: HFConfig) -> HFConfig:
    if ids.get("pad_token_id") is None:
        raise HubError("positions are counted from pad_token_id; this tokenizer has no padding")
    rows = spec["context_length"] + ids["pad_token_id"] + 1
    return {"max_position_embeddings": rows, **BERT.write(spec, ids)}


ROBERTA = BERT.derive(
    "roberta",
    "RobertaForMaskedLM",
    spec={"head.mlm_transform": "gelu"},
    keys={"hidden_act": Key("ffn.kind", ACTIVATIONS, "gelu")},
    defaults={"pad_token_id": 1},
    read=read_roberta,
    write=write_roberta,
    names=NAMES.replace("bert.", "roberta.") + ROBERTA_HEAD,
    rules=lambda spec, hf_config: {
        **skip_rows(hf_config["pad_token_id"] + 1, POSITIONS),
        **columns(f"lm_head.{MAP[spec[TIED]]}"),
    },
    prefix="roberta.",
    aliases={
        "lm_head.decoder.weight": "roberta.embeddings.word_embeddings.weight",
        "lm_head.decoder.bias": "lm_head.bias",
    },
    optional=r"roberta\.pooler\..*|lm_head\.bias|.*\.position_ids",
)
# export writes a model with one type, or none, as this class and not as BERT
ONE_TYPE_ROBERTA = ROBERTA._replace(
    keys=ROBERTA.keys | {"type_vocab_size": Key("embedding.type_vocab_size", {1: 1})},
)
XLM_ROBERTA = ROBERTA.derive("xlm-roberta", "XLMRobertaForMaskedLM")
CAMEMBERT = ROBERTA.derive("camembert", "CamembertForMaskedLM")
ELECTRA_HEAD = """
electra.embeddings.position_embeddings             stack.position.table
generator_predictions.dense                        head.transform.dense
generator_predictions.LayerNorm                    head.transform.norm
"""
ELECTRA = BERT.derive(
    "electra",
    "ElectraForMaskedLM",
    spec=ROBERTA.spec,
    keys=ROBERTA.keys | {"embedding_size": Key("d_model", default=128)},
    ignored="summary_last_dropout",
    names=NAMES.replace("bert.", "electra.") + ELECTRA_HEAD,
    rules=lambda spec, hf_config: columns("generator_lm_head  head.map"),
    prefix="electra.",
    aliases={"generator_lm_head.weight": "electra.embeddings.word_embeddings.weight"},
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
    architecture="DistilBertForMaskedLM",
    spec=BERT.spec | {"norm.eps": 1e-12},
    keys={
        "dim": Key("d_model"),
        "n_layers": Key("n_layers"),
        "n_heads": Key("n_heads"),
        "hidden_dim": Key("ffn.d_ff"),
        "max_position_embeddings": Key("context_length"),
        "activation": Key("ffn.kind head.mlm_transform", ACTIVATIONS, "gelu"),
        "tie_word_embeddings": Key("head.tie_weights", bool, True),
        "dropout": Key("dropout", BelowOne, 0.1),
    },
    ignored="qa_dropout seq_classif_dropout sinusoidal_pos_embds tie_weights_",
    names=DISTILBERT_NAMES,
    prefix="distilbert.",
    aliases={"vocab_projector.weight": "distilbert.embeddings.word_embeddings.weight"},
)
