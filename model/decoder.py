"""Decoder: GPT and its kin. Each token is predicted from those before it."""

import torch.nn as nn

from model.embedding import make_embedding
from model.head import make_head
from model.stack import Stack


class Decoder(nn.Module):
    """tokens, (B, T); visible, (B, T), false where they are padding; caches from new_caches, to go on from
    earlier tokens. `hidden` is what the head reads."""

    kind = "decoder"

    def __init__(self, config, vocab_size):
        super().__init__()
        self.context = config.context
        self.embedding = make_embedding(config, vocab_size)
        self.stack = Stack(config, causal=True)
        self.head = make_head(config, vocab_size)

    def hidden(self, tokens, *, visible=None, caches=None):
        return self.stack(self.embedding(tokens), visible=visible, caches=caches)

    def forward(self, tokens, *, visible=None, caches=None):
        logits_BTV = self.head(self.hidden(tokens, visible=visible, caches=caches))
        return logits_BTV

    def new_caches(self, size):
        return self.stack.new_caches(size)
