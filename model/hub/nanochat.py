"""NanoChat: the class that fits the default model. Its norms have no weights, its squared relu no gate, and its
pairs turn the other way."""

from model.hub.family import Family
from model.hub.gpt2 import ACTIVATIONS, head_widths
from model.hub.llama import BASE, BIASES, COUNTS, MISSING, SIZES, heads, read, write
from model.hub.llama import tensors as llama_tensors
from model.hub.tensors import each


def tensors(facts, theirs):
    def halves_change_places(rows):
        return rows.unflatten(0, (-1, 2, facts["attention.key_width"] // 2)).flip(1).flatten(0, 2)

    def turning(part):
        return each(f"stack.blocks.*.attention.{part}", halves_change_places, halves_change_places)

    normless = {t: o for t, o in llama_tensors(facts, theirs).items() if "norm" not in t and "mlp" not in t}
    return normless | {
        "model.layers.*.self_attn.q_proj": turning("query"),
        "model.layers.*.self_attn.k_proj": turning("key"),
        "model.layers.*.mlp.fc1": "stack.blocks.*.ffn.up",
        "model.layers.*.mlp.fc2": "stack.blocks.*.ffn.out",
    }


NANOCHAT = Family(
    model_type="nanochat",
    architecture="NanoChatForCausalLM",
    auto="AutoModelForCausalLM",
    init="modern",
    facts={
        **BASE,
        **heads(qk_norm="head"),
        "norm.weight": False,
        "embedding_norm": True,
        "ffn.bias": False,
    },
    keys={**SIZES, **BIASES, "final_logit_softcapping": "head.softcap"},
    words={"hidden_act": ACTIVATIONS},
    missing={**MISSING, "hidden_act": "relu2", "final_logit_softcapping": 15.0},
    unread=COUNTS,
    read=lambda theirs, facts: (
        head_widths(facts["d_model"], facts["n_heads"], "attention") | read(theirs, facts)
    ),
    write=write,
    tensors=tensors,
    prefix="model.",
    aliases={"lm_head.weight": "model.embed_tokens.weight"},
)
NANOCHAT.facts.pop("head.softcap")
