"""The classes of transformers that are supported, and what others would need."""

from model.hub.families.bart import BART, MARIAN, MBART, PEGASUS
from model.hub.families.bert import BERT, CAMEMBERT, ONE_TYPE_ROBERTA, ROBERTA, XLM_ROBERTA
from model.hub.families.bloom import BLOOM
from model.hub.families.cohere import COHERE
from model.hub.families.deepseek import DEEPSEEK
from model.hub.families.distilbert import DISTILBERT
from model.hub.families.electra import ELECTRA
from model.hub.families.falcon import FALCON
from model.hub.families.gemma import GEMMA
from model.hub.families.gemma2 import GEMMA2, GEMMA3
from model.hub.families.gpt2 import GPT2
from model.hub.families.gpt_neox import NEOX
from model.hub.families.granite import GRANITE
from model.hub.families.llama import LLAMA, MISTRAL, NANOCHAT, QWEN2, QWEN3
from model.hub.families.modernbert import MODERNBERT
from model.hub.families.moe import MIXTRAL, QWEN3_MOE
from model.hub.families.olmo import OLMO
from model.hub.families.olmo2 import OLMO2
from model.hub.families.opt import OPT
from model.hub.families.phi import PHI
from model.hub.families.phi3 import PHI3
from model.hub.families.smollm3 import SMOLLM3
from model.hub.families.stablelm import STABLELM
from model.hub.families.starcoder2 import STARCODER2
from model.hub.families.t5 import MT5, T5
from model.hub.family import Family

# export takes the first that fits: LLAMA before MISTRAL, and one type before BERT, fit fewer models
ALL: tuple[Family, ...] = (
    *(GPT2, LLAMA, MISTRAL, NANOCHAT, QWEN3, DEEPSEEK, ONE_TYPE_ROBERTA, BERT, T5, BART),
    *(QWEN2, GEMMA, PHI3, STABLELM, STARCODER2, OLMO, GRANITE, COHERE),
    *(OPT, NEOX, PHI, FALCON, BLOOM),
    *(SMOLLM3, OLMO2, GEMMA2, GEMMA3, MODERNBERT, MIXTRAL, QWEN3_MOE),
    *(ROBERTA, XLM_ROBERTA, CAMEMBERT, DISTILBERT, ELECTRA, MBART, PEGASUS, MARIAN, MT5),
)
FAMILIES = {family.model_type: family for family in ALL}
# {model_type: (what the network lacks for it, the nearest that is supported)}
LACKING = {
    "albert": ("one block that all layers share", "bert"),
    "deberta-v2": ("attention to relative positions by content", "bert"),
    "gemma3": ("images", "gemma3_text, its text model"),
    "gpt_oss": ("experts with biases, and sinks that are no tokens", "qwen3_moe"),
    "longformer": ("windows with global tokens in both directions", "roberta"),
    "mamba": ("state-space layers", "llama"),
    "olmoe": ("weights of experts that are not scaled to sum to 1", "qwen3_moe"),
    "qwen2_moe": ("a gate for the expert that all tokens pass", "qwen3_moe"),
    "umt5": ("a relative position table in each layer", "mt5"),
    "xlnet": ("permutation language modeling", "bert"),
}
