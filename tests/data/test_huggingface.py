"""Conversion to and from tokenizer.json keeps all ids."""

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from configs.errors import TokenizerError
from data.tokenizers.huggingface import tokenizer_json
from data.tokenizers.imported import HubTokenizer, load_hf_tokenizer
from data.tokenizers.tokenizer import BytePairTokenizer, to_base64
from data.tokenizers.train import byte_level, train_bpe
from tests.data.test_tokenizer import library as python_text
from tests.parts import refused

SAMPLE = (
    "It's  a naïve Straße, 東京 — don't 1234567890 3.14e-10!\n\n"
    "\tdef f(x):\r\n        return x ** 2  # été\n"
    '\'Tis "so" e\u0301 \u00a0 \u2028 \U0001f642\U0001f468\u200d\U0001f469 '
    "Привет мир 你好 शब्द  end \n \n  "
)
TEXT = SAMPLE + " the cat's hat <|end|> <eos>"
CL100K = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+|"
    r" ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|"
    r"\s*[\r\n]|\s+(?!\S)|\s"
)
STORY = "".join(
    f"def f_{i}(x):\n    return f'{i * i} words, isn\\'t it' + x\n" for i in range(1000)
)
NOT_POSSESSIVE = CL100K.replace("++", "+").replace("?+", "?").replace("}+", "}").replace("*+", "*")


def byte_pairs(pattern=None, special=("<eos>", "<pad>"), first=False, normalizer=None):
    """A byte-level BPE such as GPT-2's, trained by the library."""
    tokenizer = Tokenizer(models.BPE())
    usual = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.pre_tokenizer = byte_level(pattern) if pattern else usual
    tokenizer.decoder = decoders.ByteLevel()
    if normalizer:
        tokenizer.normalizer = normalizer
    trainer = trainers.BpeTrainer(
        vocab_size=290,
        initial_alphabet=usual.alphabet(),
        special_tokens=list(special) if first else [],
        show_progress=False,
    )
    tokenizer.train_from_iterator([STORY], trainer)  # the same with every version of Python
    tokenizer.add_special_tokens(list(special))
    return tokenizer


def test_patterns_are_translated():
    ranks = to_base64(train_bpe(iter([python_text(60_000)]), 500))
    ours = BytePairTokenizer(CL100K, ranks, {"end": 600})
    theirs = load_hf_tokenizer(tokenizer_json(ours))
    numbers = "a  \n\n b 1234567 12345678\n   "
    for text in (TEXT, numbers, python_text(30_000), "\t \r\n x", "end \n \n"):
        assert theirs.encode(text).ids == ours.encode(text).tolist()


def test_padding_and_truncation_are_kept_and_never_applied():
    """(That import and export keep ids is in tests/model/hub.)"""
    theirs = byte_pairs()
    theirs.encode_special_tokens = True  # does not parse them
    ids = theirs.encode(TEXT).ids
    theirs.enable_padding(length=10**6)
    theirs.enable_truncation(1)
    ours = HubTokenizer(theirs.to_str(), {"end": 400}, 512)
    assert ours.encode(TEXT).tolist() == ids
    assert tokenizer_json(ours) == theirs.to_str()


@pytest.mark.parametrize("text", ["{}", "", "not JSON"])
def test_what_the_library_cannot_read(text):
    with refused("^not a valid tokenizer.json: ", TokenizerError) as raised:
        load_hf_tokenizer(text)
    assert "\n" not in str(raised.value)


def test_a_text_that_cannot_be_encoded():
    words = Tokenizer(models.WordLevel({"a": 0}, unk_token="[UNK]")).to_str()
    ours = HubTokenizer(words, {"end": 1}, 2)
    assert ours.encode("a").tolist() == [0]
    with refused("tokenizer.json cannot encode 'b': .*UNK", TokenizerError):
        ours.encode("b")
