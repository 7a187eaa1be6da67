"""BERT, and RoBERTa and its relatives: other tensor names, and positions that begin after the
padding's."""

from configs.errors import HubError
from configs.registry import BelowOne, Positive
from model.hub.family import SIZES, Family, HFConfig, Key
from model.hub.spec import ACTIVATIONS, BASE, POST_NORM, Spec
from model.hub.tensors import Table, columns, skip_rows

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
cls.predictions."""
ROBERTA_HEAD = """
lm_head.dense                                      head.transform.dense
lm_head.layer_norm                                 head.transform.norm
lm_head."""
# what follows, by whether the head is tied: then its bias lies beside it
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
        "tie_word_embeddings": Key(TIED, bool, True),
        "hidden_dropout_prob": Key("dropout", BelowOne, 0.1),
    },
    required={"position_embedding_type": "absolute"},
    ignored="directionality pooler_fc_size pooler_num_attention_heads pooler_num_fc_layers "
    "pooler_size_per_head pooler_type",
    write=lambda spec, ids: {
        "type_vocab_size": spec["embedding.type_vocab_size"] or 1,
        "attention_probs_dropout_prob": float(spec["dropout"]),
    },
    tensors=lambda spec, hf_config: columns(NAMES + HEAD + MAP[spec[TIED]]),
    prefix="bert.",
    aliases={
        "cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight",
        "cls.predictions.decoder.bias": "cls.predictions.bias",
    },
    optional=r"bert\.pooler\..*|cls\.(seq_relationship\..*|predictions\.bias)|.*\.position_ids",
)


def roberta_tensors(spec: Spec, hf_config: HFConfig) -> Table:
    first = hf_config.get("pad_token_id", 1) + 1
    table = columns(NAMES.replace("bert.", "roberta.") + ROBERTA_HEAD + MAP[spec[TIED]])
    position = skip_rows(first, "stack.position.table")
    return table | {"roberta.embeddings.position_embeddings": position}


def read_roberta(hf_config: HFConfig, spec: Spec) -> Spec:
    """Positions begin after pad_token_id."""
    rows, pad = spec["context_length"], hf_config.get("pad_token_id", 1)
    if type(pad) is not int or not 0 <= pad < rows - 1:
        raise HubError(f"none of {rows} positions is left after pad_token_id ({pad})")
    return {"context_length": rows - pad - 1}


def write_roberta(spec: Spec, ids: HFConfig) -> HFConfig:
    if ids.get("pad_token_id") is None:
        raise HubError("positions are counted from pad_token_id; this tokenizer has no padding")
    rows = spec["context_length"] + ids["pad_token_id"] + 1
    return {"max_position_embeddings": rows, **BERT.write(spec, ids)}


ROBERTA = BERT._replace(
    model_type="roberta",
    architecture="RobertaForMaskedLM",
    spec=BERT.spec | {"head.mlm_transform": "gelu"},
    keys=BERT.keys | {"hidden_act": Key("ffn.kind", ACTIVATIONS, "gelu")},
    read=read_roberta,
    write=write_roberta,
    tensors=roberta_tensors,
    prefix="roberta.",
    aliases={
        "lm_head.decoder.weight": "roberta.embeddings.word_embeddings.weight",
        "lm_head.decoder.bias": "lm_head.bias",
    },
    optional=r"roberta\.pooler\..*|lm_head\.bias|.*\.position_ids",
)
# which a model with one type, or none, is written as, and not as BERT
ONE_TYPE_ROBERTA = ROBERTA._replace(
    keys=ROBERTA.keys | {"type_vocab_size": Key("embedding.type_vocab_size", {1: 1})},
)
XLM_ROBERTA = ROBERTA._replace(model_type="xlm-roberta", architecture="XLMRobertaForMaskedLM")
CAMEMBERT = ROBERTA._replace(model_type="camembert", architecture="CamembertForMaskedLM")
