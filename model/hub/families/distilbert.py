"""DistilBERT: BERT under other names, without token types, and with one eps for all norms."""

from configs.registry import BelowOne
from model.hub.families.bert import BERT, TIED
from model.hub.family import Family, Key
from model.hub.spec import ACTIVATIONS
from model.hub.tensors import columns

NAMES = """
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
        "tie_word_embeddings": Key(TIED, bool, True),
        "dropout": Key("dropout", BelowOne, 0.1),
    },
    ignored="qa_dropout seq_classif_dropout sinusoidal_pos_embds tie_weights_",
    tensors=lambda spec, hf_config: columns(NAMES),
    prefix="distilbert.",
    aliases={"vocab_projector.weight": "distilbert.embeddings.word_embeddings.weight"},
)
