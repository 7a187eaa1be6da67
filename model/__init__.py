"""One transformer for all families. Read transformer.py, stack.py, block.py, attention.py and
attend.py first, in the order of a forward pass; `python -m model.shapes` prints all its shapes.

A name's trailing capitals are its axes, as in q_BHTD; a bare x is always (B, T, C). A result has a
name even if only `return` follows: model.shapes shows it.
"""

from model import encoders as encoders  # registers its architectures

LEGEND = {
    "B": "batch size (1 if broadcast)",
    "T": "query length",
    "S": "key/value length",
    "C": "model width, d_model",
    "H": "query heads",
    "G": "key/value heads, each shared by H / G query heads",
    "D": "query/key head dimension",
    "E": "value head dimension",
    "W": "heads side by side: H or G of width D or E",
    "R": "rotary part of an MLA head, qk_rope_head_dim",
    "P": "non-rotary part of an MLA head, qk_nope_head_dim: P + R = D",
    "L": "MLA latent dimension, kv_lora_rank",
    "K": "what MLA caches per token, L + R",
    "F": "feed-forward dimension, d_ff",
    "X": "experts",
    "M": "rows of experts, top_k for each token: B * T * top_k",
    "N": "positions with a target",
    "V": "vocabulary size",
    "1": "singleton (broadcast) axis",
}
