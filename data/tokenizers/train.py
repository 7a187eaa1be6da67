"""Where tokenizers come from. train(texts, specials) reads what it needs of texts(include_val),
which begins anew each time."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from configs.registry import Registry
from data.tokenizers.tokenizer import State, Tokenizer, tokenizer_from_state

Texts = Callable[[bool], Iterator[str]]  # of the training split, or with that of validation


class Trainer(Protocol):
    def train(self, texts: Texts, specials: Sequence[str]) -> Tokenizer: ...


@dataclass
class Pretrained:
    """The tokenizer of a pretrained model. It is trained already."""

    state: State

    def train(self, texts: Texts, specials: Sequence[str]) -> Tokenizer:
        return tokenizer_from_state(self.state)


TOKENIZERS: Registry[Any] = Registry(
    byte="data.tokenizers.small:ByteTrainer",
    char="data.tokenizers.small:CharTrainer",
    bpe="data.tokenizers.bpe:BpeTrainer",
    gpt2="data.tokenizers.published:GPT2",
    cl100k="data.tokenizers.published:CL100K",
    o200k="data.tokenizers.published:O200K",
)
