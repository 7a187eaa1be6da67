"""StarCoder2: Llama with layernorm, biases, and a feed-forward layer without gate."""

from configs.registry import BelowOne, Positive
from model.hub.families.llama import DECODER, SLIDING_WINDOW
from model.hub.family import Key
from model.hub.spec import ACTIVATIONS, BASE

STARCODER2 = DECODER.derive(
    "starcoder2",
    "Starcoder2ForCausalLM",
    without="rms_norm_eps attention_bias",
    spec=BASE,
    keys={
        "hidden_act": Key("ffn.kind", ACTIVATIONS, "gelu_pytorch_tanh"),
        "norm_epsilon": Key("norm.eps", Positive, 1e-5),
        **SLIDING_WINDOW,
        "use_bias": Key("attention.bias attention.o_bias ffn.bias", bool, True),
        "residual_dropout": Key("dropout", BelowOne, 0.0),
    },
    defaults={"tie_word_embeddings": True, "num_key_value_heads": 2},
    required={"mlp_type": "default", "norm_type": "layer_norm", "scale_attn_weights": True},
    ignored=f"{DECODER.ignored} embedding_dropout activation_function layer_norm_epsilon "
    "attention_softmax_in_fp32 scale_attention_softmax_in_fp32",
    names=DECODER.names.replace("up_proj", "c_fc").replace("down_proj", "c_proj"),
)
