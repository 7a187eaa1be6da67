"""The supported classes of transformers."""

from model.hub.families import bart, bert, decoders, gpt2, gpt_neox, llama, t5
from model.hub.family import Family

# export takes the first that fits: within a file, in the order there; a RoBERTa with one token type
# comes before BERT, because it fits fewer models
ONE_TYPE = bert.ROBERTA.derive("roberta", values={"type_vocab_size": {1: 1}})
ALL = [ONE_TYPE]
for module in (gpt2, llama, decoders, gpt_neox, bert, t5, bart):
    for family in vars(module).values():
        if isinstance(family, Family) and family.model_type:
            ALL.append(family)
FAMILIES = {family.model_type: family for family in ALL}
