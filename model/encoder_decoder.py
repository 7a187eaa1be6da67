"""Encoder-decoder: T5, BART, the transformer of 2017. A source is read from both sides into a memory; a
decoder writes its answer token by token and looks at that memory in every layer."""

from dataclasses import asdict, replace

import torch.nn as nn

from model.embedding import make_embedding
from model.head import make_head
from model.stack import Stack


class EncoderDecoder(nn.Module):
    """source, (B, S), and tokens, (B, T), the answer so far; source_visible, (B, S), false where it is
    padding."""

    kind = "encoder_decoder"

    def __init__(self, config, vocab_size):
        super().__init__()
        self.context = config.context
        encoder = replace(config, **{size: n for size, n in asdict(config.encoder).items() if n is not None})
        self.embedding = make_embedding(config, vocab_size)
        self.decoder = Stack(config, causal=True, memory_width=encoder.d_model)
        try:
            self.encoder = Stack(encoder, causal=False)
        except ValueError as error:  # the same parts served the decoder, so it is the encoder's own sizes
            raise ValueError(f"model.encoder: {error}") from None
        # source and target share one table as long as they share its width
        shared = encoder.d_model == config.d_model
        self.source_embedding = None if shared else make_embedding(encoder, vocab_size)
        self.head = make_head(config, vocab_size)

    def encode(self, source, *, visible=None):
        embed = self.source_embedding or self.embedding
        return self.encoder(embed(source), visible=visible)

    def decode(self, tokens, memory, *, visible=None, memory_visible=None, caches=None):
        x = self.embedding(tokens)
        return self.decoder(x, visible=visible, memory=memory, memory_visible=memory_visible, caches=caches)

    def hidden(self, source, tokens, *, source_visible=None):
        memory_BSC = self.encode(source, visible=source_visible)
        return self.decode(tokens, memory_BSC, memory_visible=source_visible)

    def forward(self, source, tokens, *, source_visible=None):
        logits_BTV = self.head(self.hidden(source, tokens, source_visible=source_visible))
        return logits_BTV

    def new_caches(self, size):
        return self.decoder.new_caches(size)
