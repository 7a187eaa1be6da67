"""BERT and RoBERTa: encoders that differ in names, and in where positions begin."""

from configs.errors import HubError
from model.hub.family import Family
from model.hub.spec import ACTIVATIONS, attention_spec, head_widths
from model.hub.tensors import skip_rows


def body(name, first):
    layer, ours, beside = f"{name}.encoder.layer.*", "stack.blocks.*", f"{name}.embeddings"
    parts = {
        f"{layer}.attention.self.{part}": f"{ours}.attention.{part}" for part in ("query", "key", "value")
    }
    return parts | {
        f"{beside}.word_embeddings": "embedding.table",
        f"{beside}.token_type_embeddings": "embedding.types",
        f"{beside}.position_embeddings": skip_rows(first, "stack.position.table"),
        f"{beside}.LayerNorm": "stack.embedding_norm",
        f"{layer}.attention.output.dense": f"{ours}.attention.out",
        f"{layer}.attention.output.LayerNorm": f"{ours}.attention_norm",
        f"{layer}.intermediate.dense": f"{ours}.ffn.up",
        f"{layer}.output.dense": f"{ours}.ffn.out",
        f"{layer}.output.LayerNorm": f"{ours}.ffn_norm",
    }


def bert_tensors(facts, theirs):
    return body("bert", 0) | {
        "cls.predictions.transform.dense": "head.transform.dense",
        "cls.predictions.transform.LayerNorm": "head.transform.norm",
        "cls.predictions.bias": "head.map.bias",
    }


def roberta_tensors(facts, theirs):
    return body("roberta", theirs["pad_token_id"] + 1) | {
        "lm_head.dense": "head.transform.dense",
        "lm_head.layer_norm": "head.transform.norm",
        "lm_head.bias": "head.map.bias",
    }


def read(theirs, facts):
    return head_widths(facts, "attention")


def read_behind_padding(theirs, facts):
    """RoBERTa counts from behind its pad token."""
    rows, pad = theirs["max_position_embeddings"], theirs.setdefault("pad_token_id", 1)
    if not isinstance(pad, int) or not 0 <= pad < rows - 1:
        raise HubError(f"config.json: {rows} positions begin behind pad_token_id ({pad}), so none is left")
    return read(theirs, facts) | {"context_length": rows - pad - 1}


def write(facts, theirs):
    return {"type_vocab_size": facts["embedding.type_vocab_size"] or 1}


def write_behind_padding(facts, theirs):
    if (pad := theirs.get("pad_token_id")) is None:
        raise HubError("RobertaForMaskedLM counts from its pad token, and the tokenizer of this run has none")
    return {"max_position_embeddings": facts["context_length"] + pad + 1}


# fmt: off
BERT = Family(
    model_type="bert",
    architecture="BertForMaskedLM",
    auto="AutoModelForMaskedLM",
    init="bert",
    facts={
        "kind": "encoder", "embedding.scale_by_sqrt_d": False, "embedding_norm": True, "position.kind": "learned",
        "block.kind": "post", "norm.kind": "layernorm", "norm.weight": True, "norm.bias": True,
        **attention_spec(bias=True, o_bias=True), "ffn.bias": True, "head.bias": True,
        "head.scale_by_inv_sqrt_d": False, "head.logit_softcap": None,
    },
    keys={
        "hidden_size": "d_model", "num_hidden_layers": "n_layers", "num_attention_heads": "n_heads",
        "max_position_embeddings": "context_length", "intermediate_size": "ffn.d_ff",
        "hidden_act": ("ffn.kind", "head.mlm_transform"), "layer_norm_eps": "norm.eps",
        "type_vocab_size": "embedding.type_vocab_size", "tie_word_embeddings": "head.tie_weights",
        "hidden_dropout_prob": "dropout",
    },
    words={"hidden_act": ACTIVATIONS, "tie_word_embeddings": {True: True}},
    missing={
        "hidden_act": "gelu", "layer_norm_eps": 1e-12, "type_vocab_size": 2, "tie_word_embeddings": True,
        "hidden_dropout_prob": 0.1,
    },
    needs={"position_embedding_type": "absolute", "is_decoder": False, "add_cross_attention": False},
    unread=(
        "directionality", "pooler_fc_size", "pooler_num_attention_heads", "pooler_num_fc_layers",
        "pooler_size_per_head", "pooler_type",
    ),
    read=read,
    write=write,
    tensors=bert_tensors,
    aliases={
        "cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight",
        "cls.predictions.decoder.bias": "cls.predictions.bias",
    },
    spare=(r"bert\.pooler\..*", r"cls\.seq_relationship\..*", r".*\.position_ids"),
)
ROBERTA = BERT._replace(
    model_type="roberta",
    architecture="RobertaForMaskedLM",
    facts={**BERT.facts, "embedding.type_vocab_size": 1, "head.mlm_transform": "gelu"},
    keys={k: v for k, v in BERT.keys.items() if k != "max_position_embeddings"} | {"hidden_act": "ffn.kind"},
    words={**BERT.words, "type_vocab_size": {1: 1}},
    unread=(*BERT.unread, "max_position_embeddings"),
    read=read_behind_padding,
    write=write_behind_padding,
    tensors=roberta_tensors,
    aliases={
        "lm_head.decoder.weight": "roberta.embeddings.word_embeddings.weight",
        "lm_head.decoder.bias": "lm_head.bias",
    },
    spare=(r"roberta\.pooler\..*", r".*\.position_ids"),
)
