"""Cohere (Command R, Aya): Llama with layernorm without bias, one norm for attention and
feed-forward, rope on neighboring channels, and scaled logits."""

from typing import Any

from model.hub.families.llama import DECODER
from model.hub.families.rope import QUERY_KEY, evens_first, reordered
from model.hub.spec import Spec
from model.hub.tensors import Table, scaled


def rules(spec: Spec, config: Any) -> Table:
    heads = reordered(QUERY_KEY, evens_first(spec["attention.head_dim"]))
    return heads | scaled("model.norm stack.final_norm", config.logit_scale)


COHERE = DECODER.derive(
    "cohere",
    "CohereForCausalLM",
    without="rms_norm_eps",
    spec={"norm.kind": "layernorm", "block.kind": "parallel_shared"},
    keys={"layer_norm_eps": "norm.eps"},
    rules=rules,
    write=lambda spec, special: {"logit_scale": 1.0},
)
