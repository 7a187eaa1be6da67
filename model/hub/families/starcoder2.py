"""StarCoder2: Llama with layernorm, biases, and a feed-forward layer without gate."""

from functools import partial

from configs.registry import BelowOne, Count, Positive
from model.hub.families.llama import DECODER_KEYS, HEAD_DIM, LLAMA, NAMES, read, write
from model.hub.family import Key
from model.hub.spec import ACTIVATIONS, BASE
from model.hub.tensors import columns

STARCODER2 = LLAMA._replace(
    model_type="starcoder2",
    architecture="Starcoder2ForCausalLM",
    spec=BASE | {"kind": "decoder", "position.kind": "rope"},
    keys={
        **DECODER_KEYS,
        "hidden_act": Key("ffn.kind", ACTIVATIONS, "gelu_pytorch_tanh"),
        "head_dim": HEAD_DIM,
        "norm_epsilon": Key("norm.eps", Positive, 1e-5),
        "sliding_window": Key("attention.sliding_window", Count | None, None),
        "tie_word_embeddings": Key("head.tie_weights", bool, True),
        "use_bias": Key("attention.bias attention.o_bias ffn.bias", bool, True),
        "residual_dropout": Key("dropout", BelowOne, 0.0),
    },
    required={"mlp_type": "default", "norm_type": "layer_norm", "scale_attn_weights": True},
    ignored=f"{LLAMA.ignored} embedding_dropout activation_function layer_norm_epsilon "
    "attention_softmax_in_fp32 scale_attention_softmax_in_fp32",
    read=partial(read, n_kv_heads=2),
    write=write,
    tensors=lambda spec, hf_config: columns(
        NAMES.replace("up_proj", "c_fc").replace("down_proj", "c_proj")
    ),
)
