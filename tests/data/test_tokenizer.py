"""Every tokenizer gives back what it was given, says its whole state, and takes text for text."""

import json
import os

import numpy as np
import pytest

from configs.errors import DataError
from data.files import stdlib_files
from data.tokenizers.tokenizer import tokenizer_from_state
from data.tokenizers.train import PATTERN, TOKENIZERS, bytes_to_unicode, train_bpe
from tests.data.corpora import vocabulary

TEXT = "Straße 東京 🙂 naïve e\u0301\n\tif x >= 10:  return '<|endoftext|>' # <mask> <pad>\r\n" * 3
SPECIALS = ("end", "mask", "pad")
RANKS = os.environ.get("TIKTOKEN_CACHE_DIR")  # of published encodings, where there are any


def make(name, text=TEXT, specials=SPECIALS):
    options = {"vocab_size": 300} if name == "bpe" else {}
    return vocabulary(name, **options).make(lambda whole: iter([text]), specials)


@pytest.fixture(params=["byte", "char", "bpe", "gpt2"])
def tokenizer(request):
    if request.param == "gpt2" and not RANKS:
        pytest.skip("TIKTOKEN_CACHE_DIR names no folder with published ranks")
    return make(request.param)


def test_text_comes_back(tokenizer):
    ids = tokenizer.encode(TEXT)
    assert tokenizer.decode(ids.tolist()) == TEXT
    assert tokenizer.encode("").size == 0 and tokenizer.decode([]) == ""


def test_special_tokens_are_no_text(tokenizer):
    """Their names in a text are characters; their ids no text can produce, and they decode to nothing."""
    text = TEXT if tokenizer.kind == "char" else "<|endoftext|><|end|><mask><|mask|><end>"
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids.tolist()) == text
    assert ids.max() < tokenizer.n_ordinary
    special = tokenizer.specials
    assert sorted(special) == sorted(SPECIALS) and min(special.values()) >= tokenizer.n_ordinary
    assert tokenizer.vocab_size == max(special.values()) + 1
    mixed = [special["mask"], *tokenizer.encode("if")[:2].tolist(), special["end"]]
    assert tokenizer.decode(mixed) == "if" and tokenizer.decode_with_specials(mixed) == "<mask>if<end>"


def test_a_stream_never_shows_half_a_character(tokenizer):
    stream, shown = tokenizer.incremental_decoder(), ""
    for i in tokenizer.encode(TEXT).tolist():
        shown += stream([i])
        assert TEXT.startswith(shown)
    assert shown + stream([], final=True) == TEXT


def test_text_that_breaks_off_is_shown_as_such():
    assert make("byte").decode(list("a東".encode()[:3])) == "a�"


def test_a_stream_ends_with_what_is_left_over():
    stream = make("byte").stream()
    assert stream("東".encode()[:2]) == ""
    assert stream([], final=True) == "�"


def test_the_state_is_the_tokenizer(tokenizer):
    again = tokenizer_from_state(json.loads(json.dumps(tokenizer.state())))
    assert again.state() == tokenizer.state()
    assert np.array_equal(again.encode(TEXT), tokenizer.encode(TEXT))
    assert again.specials == tokenizer.specials and again.vocab_size == tokenizer.vocab_size
    assert again.decode(tokenizer.encode(TEXT).tolist()) == TEXT


def test_an_unseen_character_is_named():
    with pytest.raises(ValueError, match="the character 'Ω' is not among the"):
        make("char").encode("if Ω")


def test_char_has_the_characters_in_order():
    tokenizer = make("char", "cabbage")
    assert tokenizer.characters == "abceg" and tokenizer.encode("cab").tolist() == [2, 0, 1]


def library(n_bytes):
    return "".join(path.read_text("utf-8") for path in stdlib_files()[::40])[:n_bytes]


def test_bpe_encodes_as_the_library_that_trained_it():
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers

    text = library(200_000)
    made = make("bpe", text)
    letter = bytes_to_unicode()
    names = ["".join(letter[b] for b in token) for token in made.ranks]
    vocab = {name: i for i, name in enumerate(names)}
    merges = []
    for name in names[256:]:
        rank = vocab[name]
        split = [
            (name[:i], name[i:])
            for i in range(1, len(name))
            if max(vocab.get(name[:i], rank), vocab.get(name[i:], rank)) < rank
        ]
        merges.append(split)
    assert all(merges), "every token is two earlier ones"
    reference = Tokenizer(models.BPE(vocab=vocab, merges=[m for split in merges for m in split]))
    reference.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PATTERN), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    assert reference.encode(text).ids == made.encode(text).tolist()


def test_bpe_has_the_size_it_was_asked_for():
    tokenizer = make("bpe", library(100_000))
    assert tokenizer.vocab_size == 300 and tokenizer.n_ordinary == 297
    with pytest.raises(ValueError, match="tokenizer.vocab_size is 200; it must be at least 259"):
        vocabulary("bpe", vocab_size=200).make(None, SPECIALS)
    with pytest.raises(ValueError, match="vocab_size must be at most 1,000,000"):
        vocabulary("bpe", vocab_size=10**23)
    with pytest.raises(ValueError, match="train_mb must be at least 1 and is 0"):
        vocabulary("bpe", train_mb=0)


def test_bpe_training_is_repeatable():
    text = library(100_000)
    assert train_bpe(iter([text]), 400) == train_bpe(iter([text]), 400)


def test_bpe_is_trained_as_far_as_it_was_asked():
    asked = []

    def texts(whole):
        assert not whole, "validation text trains no tokenizer"
        for i in range(5):
            asked.append(i)
            yield "word " * 120_000

    vocabulary("bpe", vocab_size=300, train_mb=1).make(texts, SPECIALS)
    assert asked == [0, 1]


@pytest.mark.skipif(not RANKS, reason="TIKTOKEN_CACHE_DIR names no folder with published ranks")
def test_gpt2_is_gpt2():
    tokenizer = make("gpt2", specials=("end", "pad"))
    assert tokenizer.specials == {"end": 50256, "pad": 50257} and tokenizer.n_ordinary == 50256
    assert tokenizer.encode("Hello world").tolist() == [15496, 995]
    assert make("gpt2", specials=("end",)).vocab_size == 50257


def test_without_network_the_published_say_what_to_do(tmp_path, monkeypatch):
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path))
    for proxy in ("HTTPS_PROXY", "https_proxy"):
        monkeypatch.setenv(proxy, "http://127.0.0.1:9")
    for name in ("gpt2", "cl100k", "o200k"):
        with pytest.raises(
            DataError, match=f"tokenizer={name} needs its published ranks.*TIKTOKEN_CACHE_DIR"
        ):
            make(name)


def test_the_kinds_say_what_they_are():
    assert set(TOKENIZERS) == {"byte", "char", "bpe", "gpt2", "cl100k", "o200k"}
    assert make("bpe", library(9_000)).state()["kind"] == "bpe"


@pytest.mark.parametrize(
    "state",
    [
        None,
        [],
        {},
        {"kind": "words", "specials": {}},
        {"kind": "byte"},
        {"kind": "byte", "specials": {}, "code": "print()"},
        {"kind": ["byte"], "specials": {"end": 256}},
        {"kind": "byte", "specials": {}},
        {"kind": "byte", "specials": {"end": 5}},
        {"kind": "byte", "specials": {"end": "256"}},
        {"kind": "byte", "specials": {"end": 256, "pad": 256}},
        {"kind": "byte", "specials": {"end": 2**40}},
        {"kind": "byte", "specials": {"end": 256, "../end": 257}},
        {"kind": "char", "specials": {"end": 2}, "characters": "ba"},
        {"kind": "char", "specials": {"end": 2}, "characters": "aa"},
        {"kind": "bpe", "specials": {"end": 1}, "pattern": PATTERN, "ranks": ["YQ=="]},
        {"kind": "bpe", "specials": {"end": 256}, "pattern": PATTERN, "ranks": ["?"] * 256},
        {"kind": "bpe", "specials": {"end": 256}, "pattern": PATTERN, "ranks": [1] * 256},
        make("bpe", "abc").state() | {"pattern": "("},
        make("bpe", "abc").state() | {"template": [[0]]},
        make("bpe", "abc").state() | {"template": [[0], [300]]},
        make("bpe", "abc").state() | {"template": [[-1], []]},
        make("bpe", "abc").state() | {"template": [[True], []]},
        make("bpe", "abc").state() | {"template": [["0"], []]},
        make("bpe", "abc").state() | {"template": [0, 1]},
        make("bpe", "abc").state() | {"template": {}},
        {"kind": "byte", "specials": {"end": 256}, "template": [[], []]},
        make("bpe", "abc").state() | {"ranks": make("bpe", "abc").state()["ranks"] + ["YQ=="]},
        make("bpe", "abc").state() | {"ranks": make("bpe", "abc").state()["ranks"] + [""]},
    ],
)
def test_what_is_no_state_is_refused(state):
    with pytest.raises(ValueError, match="not the state|pecial tokens|characters|ranks|frame"):
        tokenizer_from_state(state)
