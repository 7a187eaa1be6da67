"""NanoChat, the class that fits the default model: norms without weights, a squared relu without a gate, and
pairs that turn the other way."""

from model.hub.facts import ACTIVATIONS, attention_facts, head_widths
from model.hub.family import Family
from model.hub.kin import ALIASES, BASE, BIASES, COUNTS, MISSING, SIZES, read, write
from model.hub.kin import tensors as named
from model.hub.tensors import each


def tensors(facts, theirs):
    def halves_change_places(rows):
        return rows.unflatten(0, (-1, 2, facts["attention.key_width"] // 2)).flip(1).flatten(0, 2)

    def turning(part):
        return each(f"stack.blocks.*.attention.{part}", halves_change_places, halves_change_places)

    return {t: ours for t, ours in named(facts, theirs).items() if "norm" not in t and "mlp" not in t} | {
        "model.layers.*.self_attn.q_proj": turning("query"),
        "model.layers.*.self_attn.k_proj": turning("key"),
        "model.layers.*.mlp.fc1": "stack.blocks.*.ffn.up",
        "model.layers.*.mlp.fc2": "stack.blocks.*.ffn.out",
    }


def read_all(theirs, facts):
    return head_widths(facts, "attention") | read(theirs, facts)


NANOCHAT = Family(
    model_type="nanochat",
    architecture="NanoChatForCausalLM",
    auto="AutoModelForCausalLM",
    init="modern",
    facts={key: fact for key, fact in BASE.items() if key != "head.softcap"}
    | attention_facts(without=["group"], qk_norm="head")
    | {"norm.weight": False, "embedding_norm": True, "ffn.bias": False},
    keys={**SIZES, **BIASES, "final_logit_softcapping": "head.softcap"},
    words={"hidden_act": ACTIVATIONS},
    missing={**MISSING, "hidden_act": "relu2", "final_logit_softcapping": 15.0},
    unread=COUNTS,
    read=read_all,
    write=write,
    tensors=tensors,
    prefix="model.",
    aliases=ALIASES,
)
