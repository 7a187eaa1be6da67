"""GPT-2: one matrix for queries, keys and values, and every matrix the other way round."""

from model.hub.family import Family
from model.hub.spec import ACTIVATIONS, PLAIN_EMBEDDING, PLAIN_HEAD, attention_spec, head_widths
from model.hub.tensors import packed_qkv, transposed


def tensors(facts, theirs):
    block = "stack.blocks.*"
    return {
        "transformer.wte": "embedding.table",
        "transformer.wpe": "stack.position.table",
        "transformer.h.*.ln_1": f"{block}.attention_norm",
        "transformer.h.*.attn.c_attn": packed_qkv(
            *(f"{block}.attention.{p}" for p in ("query", "key", "value"))
        ),
        "transformer.h.*.attn.c_proj": transposed(f"{block}.attention.out"),
        "transformer.h.*.ln_2": f"{block}.ffn_norm",
        "transformer.h.*.mlp.c_fc": transposed(f"{block}.ffn.up"),
        "transformer.h.*.mlp.c_proj": transposed(f"{block}.ffn.out"),
        "transformer.ln_f": "stack.final_norm",
        "lm_head": "head.map",
    }


# fmt: off
GPT2 = Family(
    model_type="gpt2",
    architecture="GPT2LMHeadModel",
    auto="AutoModelForCausalLM",
    init="gpt2",
    facts={
        "kind": "decoder", **PLAIN_EMBEDDING, **PLAIN_HEAD, "position.kind": "learned", "block.kind": "pre",
        "norm.kind": "layernorm", "norm.weight": True, "norm.bias": True,
        **attention_spec(bias=True, o_bias=True), "ffn.bias": True,
    },
    keys={
        "n_embd": "d_model", "n_layer": "n_layers", "n_head": "n_heads", "n_positions": "context_length",
        "n_inner": "ffn.d_ff", "activation_function": "ffn.kind", "layer_norm_epsilon": "norm.eps",
        "tie_word_embeddings": "head.tie_weights", "resid_pdrop": "dropout", "embd_pdrop": "dropout",
        "attn_pdrop": "dropout",
    },
    words={"activation_function": ACTIVATIONS},
    missing={
        "n_inner": lambda theirs: 4 * theirs["n_embd"], "activation_function": "gelu_new",
        "layer_norm_epsilon": 1e-5, "tie_word_embeddings": True, "resid_pdrop": 0.1, "embd_pdrop": 0.1,
        "attn_pdrop": 0.1,
    },
    needs={
        "scale_attn_weights": True, "scale_attn_by_inverse_layer_idx": False, "add_cross_attention": False,
        "is_decoder": False,
    },
    unread=("n_ctx", "reorder_and_upcast_attn"),
    read=lambda theirs, facts: head_widths(facts, "attention"),
    tensors=tensors,
    prefix="transformer.",
    aliases={"lm_head.weight": "transformer.wte.weight"},
    spare=(r"transformer\.h\.\d+\.attn\.(masked_)?bias",),
)
