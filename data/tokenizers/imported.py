"""Imported tokenizers, which the `tokenizers` library runs."""

import json
import re
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy import ndarray

from configs.errors import TokenizerError, errors_as
from configs.registry import Count
from data.tokenizers.tokenizer import KINDS, Decoder, Ids, Template, Tokenizer

MAX_PENDING_IDS = 8  # ids that may wait for others to become text with them
# clean_up_tokenization_spaces strips these; a text may become one of them with its next token
UNCLEAN = (" .", " ?", " !", " ,", " ' ", " n't", " 'm", " 's", " 've", " 're")
MAYBE_UNCLEAN = re.compile(" (|'|n|n'|'v|'r)$")


class HubTokenizer(Tokenizer):
    """An imported tokenizer of any type, run by the `tokenizers` library. Its special tokens can
    have any ids."""

    kind = "hub"
    text: str

    def __init__(
        self,
        text: str,
        specials: Ids,
        vocab_size: Count,
        files: dict[str, str] | None = None,
        date: str | None = None,
    ):
        """`vocab_size` is that of the model, which may have more rows than there are ids, or fewer;
        `files` are the other files of its folder, which export writes back."""
        super().__init__(vocab_size, specials, vocab_size)
        self.text = text
        self.files = files or {}
        self.date = date
        self.backend = load_hf_tokenizer(text)
        with errors_as(TokenizerError, "tokenizer.json cannot encode 'a'"):
            self.template = template_of(self.backend)

        settings = json.loads(self.files.get("tokenizer_config.json", "{}"))
        self.splits_specials = settings.get("split_special_tokens", False)
        is_bpe = type(self.backend.model).__name__ == "BPE"
        self.cleans_up = settings.get("clean_up_tokenization_spaces", False) and not is_bpe

    def encode(self, text: str) -> ndarray:
        with errors_as(TokenizerError, f"tokenizer.json cannot encode {text[:60]!r}"):
            # unlike encode(), it lets other threads work meanwhile
            [encoding] = self.backend.encode_batch_fast([text], add_special_tokens=False)
        return np.array(self.checked(encoding.ids), np.int32)

    def checked(self, ids: list[int]) -> list[int]:
        """Refuse ids without a row: a tokenizer may have more tokens than its model has rows."""
        highest = max(ids, default=0)
        if highest >= self.vocab_size:
            token = self.backend.id_to_token(highest)
            limit = f"the model's vocab_size is {self.vocab_size}"
            raise TokenizerError(
                f"the text has the token {token!r}, whose id is {highest}; {limit}"
            )
        return ids

    @cached_property
    def parser(self) -> Any:
        """A backend that also parses special tokens in a text."""
        library = load_hf_tokenizer(self.text)
        library.encode_special_tokens = False
        return library

    def special_texts(self) -> dict[int, str]:
        added = self.parser.get_added_tokens_decoder()
        return {i: token.content for i, token in added.items()}

    def encode_specials(self, text: str) -> tuple[list[int], list[int]]:
        [encoding] = self.parser.encode_batch([text], add_special_tokens=False)  # as in encode()
        return self.checked(encoding.ids), [start for start, _ in encoding.offsets]

    def decode_with_specials(self, ids: Iterable[int]) -> str:
        return self.backend.decode(list(ids), skip_special_tokens=False)

    def decode(self, ids: Iterable[int]) -> str:
        text = self.backend.decode(list(ids))
        for unclean in UNCLEAN if self.cleans_up else ():
            text = text.replace(unclean, unclean.strip())
        return text

    def incremental_decoder(self, before: Sequence[int] = ()) -> Decoder:
        """Override: tokens may join in any way, so new ids are decoded together with the last ones
        that became text."""
        context = list(before)  # their text has been returned
        pending: list[int] = []  # the ids after them

        def decode(ids: Iterable[int], final: bool = False) -> str:
            nonlocal context, pending
            pending = [*pending[-MAX_PENDING_IDS:], *ids]
            shown = self.decode(context)
            text = self.decode(context + pending)
            is_open = text.endswith("\ufffd") or (self.cleans_up and MAYBE_UNCLEAN.search(text))
            if is_open and len(pending) < MAX_PENDING_IDS and not final:
                return ""
            if len(text) > len(shown):
                # what is cleaned up may depend on everything before it
                context = context + pending if self.cleans_up else pending
                pending = []
            return text[len(shown) :]

        return decode


def load_hf_tokenizer(text: str) -> Any:
    """A tokenizer of the library that never parses special tokens out of text."""
    import tokenizers

    with errors_as(TokenizerError, "not a valid tokenizer.json"):
        tokenizer = tokenizers.Tokenizer.from_str(text)
    tokenizer.encode_special_tokens = True
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer


def template_of(backend: Any) -> Template:
    """The ids that the tokenizer puts before and after a text."""
    encoding = backend.encode("a")
    is_special = encoding.special_tokens_mask

    first = is_special.index(0)
    after = len(is_special) - is_special[::-1].index(0)
    return [encoding.ids[:first], encoding.ids[after:]]


KINDS["hub"] = HubTokenizer
