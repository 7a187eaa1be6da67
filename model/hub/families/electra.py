"""ELECTRA's generator: BERT with a head of other names, whose activation is always GELU."""

from model.hub.families.bert import BERT, NAMES, ROBERTA
from model.hub.family import Key
from model.hub.tensors import columns

HEAD = """
electra.embeddings.position_embeddings             stack.position.table
generator_predictions.dense                        head.transform.dense
generator_predictions.LayerNorm                    head.transform.norm
generator_lm_head                                  head.map
"""


ELECTRA = BERT._replace(
    model_type="electra",
    architecture="ElectraForMaskedLM",
    spec=ROBERTA.spec,
    keys=ROBERTA.keys | {"embedding_size": Key("d_model", default=128)},
    ignored="summary_last_dropout",
    tensors=lambda spec, hf_config: columns(NAMES.replace("bert.", "electra.") + HEAD),
    prefix="electra.",
    aliases={"generator_lm_head.weight": "electra.embeddings.word_embeddings.weight"},
)
