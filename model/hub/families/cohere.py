"""Cohere (Command R, Aya): Llama with layernorm without bias, one norm for attention and
feed-forward, rope on neighboring channels, and scaled logits."""

from configs.registry import Positive, check_value
from model.hub.families.llama import DECODER
from model.hub.families.rope import QUERY_KEY, evens_first, reordered
from model.hub.family import HFConfig, Key
from model.hub.spec import Spec
from model.hub.tensors import Table, scaled


def rules(spec: Spec, hf_config: HFConfig) -> Table:
    heads = reordered(QUERY_KEY, evens_first(spec["attention.head_dim"]))
    logit_scale = check_value("logit_scale", hf_config["logit_scale"], Positive)
    return heads | scaled("model.norm stack.final_norm", logit_scale)


COHERE = DECODER.derive(
    "cohere",
    "CohereForCausalLM",
    without="rms_norm_eps",
    spec={
        "norm.kind": "layernorm",
        "block.kind": "parallel_shared",
        "position.rope_theta": 500_000.0,
    },
    keys={"layer_norm_eps": Key("norm.eps", Positive, 1e-5)},
    defaults={"tie_word_embeddings": True, "logit_scale": 0.0625},
    required={"use_qk_norm": False},
    ignored=f"{DECODER.ignored} model_max_length",
    write=lambda spec, ids: {"logit_scale": 1.0},
    rules=rules,
)
