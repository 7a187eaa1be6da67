"""The published encodings of tiktoken."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from configs.errors import DataError
from data.tokenizers.bpe import BytePairTokenizer, to_base64
from data.tokenizers.tokenizer import Tokenizer, assign_ids
from data.tokenizers.train import Texts


@dataclass
class Tiktoken:
    """The encodings of GPT-2 and its successors; <|endoftext|>, our `end`, keeps its id."""

    encoding: str

    def train(self, texts: Texts, specials: Sequence[str]) -> Tokenizer:
        import tiktoken_ext.openai_public as openai

        try:
            published = openai.ENCODING_CONSTRUCTORS[self.encoding]()
        except OSError as error:  # requests' own are such, too
            raise DataError(
                f"cannot download the encoding {self.encoding} ({type(error).__name__}); connect "
                "once, set TIKTOKEN_CACHE_DIR to its folder or use tokenizer=bpe"
            ) from None

        id_of = published["mergeable_ranks"]
        ranks = to_base64(sorted(id_of, key=id_of.get))
        end = published["special_tokens"]["<|endoftext|>"]
        others = [name for name in specials if name != "end"]
        ids = {"end": end} | assign_ids(others, end + 1)
        return BytePairTokenizer(published["pat_str"], ranks, ids)


GPT2 = partial(Tiktoken, encoding="gpt2")
CL100K = partial(Tiktoken, encoding="cl100k_base")
O200K = partial(Tiktoken, encoding="o200k_base")
