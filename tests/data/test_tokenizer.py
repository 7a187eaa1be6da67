"""Every tokenizer decodes what it encodes, has a complete state, and finds no special tokens in
text."""

import json
import os

import pytest

from configs.errors import DataError
from data.readers import stdlib_files
from data.tokenizers.tokenizer import tokenizer_from_state
from data.tokenizers.train import MAX_WORD_CHARS, train_bpe
from tests.data.corpora import trainer
from tests.parts import refused

TEXT = "Straße 東京 🙂 naïve e\u0301\n\tif x >= 10:  return '<|endoftext|>' # <mask> <pad>\r\n" * 3
SPECIALS = ("end", "mask", "pad")
RANKS = os.environ.get("TIKTOKEN_CACHE_DIR")  # of pretrained encodings, if there are any
NEEDS_RANKS = pytest.mark.skipif(not RANKS, reason="TIKTOKEN_CACHE_DIR is not set")


def make(name, text=TEXT, specials=SPECIALS):
    options = {"vocab_size": 300} if name == "bpe" else {}
    return trainer(name, **options).train(lambda include_val: iter([text]), specials)


@pytest.fixture(params=["byte", "char", "bpe", pytest.param("gpt2", marks=NEEDS_RANKS)])
def tokenizer(request):
    return make(request.param)


def test_special_tokens_are_not_text(tokenizer):
    """Their names in a text are characters, no text has their ids, and they decode to nothing."""
    text = TEXT if tokenizer.kind == "char" else "<|endoftext|><|end|><mask><|mask|><end>"
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids.tolist()) == text
    assert ids.max() < tokenizer.n_ordinary
    special = tokenizer.specials
    assert sorted(special) == sorted(SPECIALS) and min(special.values()) >= tokenizer.n_ordinary
    assert tokenizer.vocab_size == max(special.values()) + 1
    mixed = [special["mask"], *tokenizer.encode("if").tolist(), special["end"]]
    assert tokenizer.decode(mixed) == "if"
    assert tokenizer.decode_with_specials(mixed) == "<mask>if<end>"


def test_incremental_decoding_never_splits_a_character(tokenizer):
    stream = tokenizer.incremental_decoder()
    shown = ""
    for i in tokenizer.encode(TEXT).tolist():
        shown += stream([i])
        assert TEXT.startswith(shown)
    assert shown + stream([], final=True) == TEXT


def test_state_round_trip(tokenizer):
    state = json.loads(json.dumps(tokenizer.state()))
    again = tokenizer_from_state(state)
    assert again.state() == state
    assert again.vocab_size == tokenizer.vocab_size
    for text in (TEXT, ""):
        ids = tokenizer.encode(text).tolist()
        assert again.encode(text).tolist() == ids
        assert tokenizer.decode(ids) == again.decode(ids) == text


def test_char_ids_are_sorted():
    tokenizer = make("char", "cabbage")
    assert tokenizer.characters == "abceg"
    assert tokenizer.encode("cab").tolist() == [2, 0, 1]
    with refused("'Ω' is not among the characters of the tokenizer; try"):
        tokenizer.encode("cabΩ")


def library(n_bytes):
    return "".join(path.read_text("utf-8") for path in stdlib_files()[::40])[:n_bytes]


def test_bpe_has_the_requested_size():
    tokenizer = make("bpe", library(100_000))
    assert tokenizer.vocab_size == 300 and tokenizer.n_ordinary == 297
    with refused("tokenizer.vocab_size is 200; it must be at least 259"):
        trainer("bpe", vocab_size=200).train(None, SPECIALS)
    with refused("vocab_size is 1.*; expected an integer at most 1,000,0"):
        trainer("bpe", vocab_size=10**23)


WORDS = ["a" * 100_000, " " * 100_000, "a" * 5000 + "!" * 5000 + "1" * 5000]


@pytest.mark.parametrize("text", WORDS)
def test_a_word_without_end_does_not_train_for_ever(text):
    """A token is merged from the parts of a word, so its length tells that of the words."""
    tokens = train_bpe(iter([text]), 400)
    assert MAX_WORD_CHARS / 2 < max(map(len, tokens)) <= MAX_WORD_CHARS


def test_bpe_reads_no_more_than_train_mb():
    asked = []

    def texts(include_val):
        assert not include_val, "validation text trains no tokenizer"
        for i in range(5):
            asked.append(i)
            yield "word " * 120_000

    trainer("bpe", vocab_size=300, train_mb=1).train(texts, SPECIALS)
    assert asked == [0, 1]


@NEEDS_RANKS
def test_gpt2_is_gpt2():
    tokenizer = make("gpt2", specials=("end", "pad"))
    assert tokenizer.specials == {"end": 50256, "pad": 50257} and tokenizer.n_ordinary == 50256
    assert tokenizer.encode("Hello world").tolist() == [15496, 995]
    assert make("gpt2", specials=("end",)).vocab_size == 50257


def test_pretrained_ranks_offline(tmp_path, monkeypatch):
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:9")
    for name in ("gpt2", "cl100k", "o200k"):
        with refused(f"the encoding {name}.* .*TIKTOKEN_CACHE_DIR", DataError):
            make(name)
