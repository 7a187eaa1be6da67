"""Encoder: BERT and its kin. Every token sees both sides; masked ones are guessed from what is around
them."""

import torch.nn as nn

from model.embedding import make_embedding
from model.head import make_head
from model.stack import Stack


class Encoder(nn.Module):
    """tokens, (B, T); visible, (B, T), false where they are padding; types, (B, T), the text each stands in,
    where there are two."""

    kind = "encoder"

    def __init__(self, config, vocab_size):
        super().__init__()
        self.context = config.context
        self.embedding = make_embedding(config, vocab_size)
        self.stack = Stack(config, causal=False)
        self.head = make_head(config, vocab_size)

    def hidden(self, tokens, *, visible=None, types=None):
        return self.stack(self.embedding(tokens, types), visible=visible)

    def forward(self, tokens, *, visible=None, types=None):
        logits_BTV = self.head(self.hidden(tokens, visible=visible, types=types))
        return logits_BTV
