"""StarCoder2: Llama with layernorm, biases, and a feed-forward layer without gate."""

from model.hub.families.layers import SIZE
from model.hub.families.llama import DECODER
from model.hub.spec import ACTIVATIONS, BASE

STARCODER2 = DECODER.derive(
    "starcoder2",
    "Starcoder2ForCausalLM",
    without="rms_norm_eps attention_bias head_dim",
    spec=BASE,
    keys={
        "norm_epsilon": "norm.eps",
        "sliding_window": SIZE,
        "use_bias": "attention.bias attention.o_bias ffn.bias",
        "residual_dropout": "dropout",
    },
    values={"hidden_act": ACTIVATIONS},
    names=DECODER.names.replace("up_proj", "c_fc").replace("down_proj", "c_proj"),
)
