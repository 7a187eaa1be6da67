"""A tokenizer.json is untrusted data: it works or is refused, within bounds of memory and time."""

import base64
import copy
import json
import os
import random
import re
import resource
import struct
import traceback
from contextlib import nullcontext
from pathlib import Path

import pytest
import transformers
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from configs.cli import run_command
from configs.errors import CheckpointError, TokenizerError
from data.tokenizers.huggingface import template_of
from data.tokenizers.limits import as_tokenizer_error
from data.tokenizers.tokenizer import (
    BytePairTokenizer,
    HubTokenizer,
    load_hf_tokenizer,
    tokenizer_from_state,
)
from model.checkpoint.files import read_tokenizer
from model.hub.__main__ import main as hub
from tests.faults.harness import exit_code, fork
from tests.model.hub.hub_models import build_hf, save

TEXT = "It's  a cat — \ufdfa é 12\n" * 3
BYTES = [bytes([byte]) for byte in range(256)]


def charsmap(replacements=b"a\0", value=0, first=0x61, offset=2, n_units=256, size=None):
    """A character map, as sentencepiece writes it, that replaces one byte."""
    units = [0] * n_units
    units[0] = 1 << 10
    units[1 ^ first] = offset << 10 | 1 << 8 | first
    units[1 ^ first ^ 2] = 1 << 31 | value
    return (
        struct.pack(f"<I{n_units}I", 4 * n_units if size is None else size, *units) + replacements
    )


def precompiled(**options):
    data = base64.b64encode(charsmap(**options)).decode()
    return {"normalizer": {"type": "Precompiled", "precompiled_charsmap": data}}


def chain(n, step, part="normalizer"):
    """n times the same step."""
    return {part: {"type": "Sequence", f"{part.replace('_', '')}s": [step] * n}}


def replace(content, pattern="."):
    return {"type": "Replace", "pattern": {"Regex": pattern}, "content": content}


VOCAB = {
    token: i for i, token in enumerate(["[UNK]", *"abcdefghi #\u2581\u0120\u00e9", "##a", "ca"])
}
MODELS = [
    models.BPE(VOCAB, [("c", "a")], unk_token="[UNK]", byte_fallback=True),
    models.BPE(VOCAB, [("c", "##a")], continuing_subword_prefix="##", end_of_word_suffix="i"),
    models.WordPiece(VOCAB, unk_token="[UNK]"),
    models.WordLevel(VOCAB, unk_token="[UNK]"),
    models.Unigram(
        [(token, -float(i)) for token, i in VOCAB.items()], unk_id=0, byte_fallback=True
    ),
]
NORMALIZERS = [
    *(
        normalizers.BertNormalizer(),
        normalizers.ByteLevel(),
        normalizers.Lowercase(),
        normalizers.NFC(),
    ),
    *(
        normalizers.NFD(),
        normalizers.NFKC(),
        normalizers.NFKD(),
        normalizers.Nmt(),
        normalizers.Strip(),
    ),
    *(
        normalizers.StripAccents(),
        normalizers.Prepend("\u2581"),
        normalizers.Precompiled(charsmap()),
    ),
    *(normalizers.Replace(Regex(" {2,}"), "\u2581"), normalizers.Replace(" ", "\u2581")),
]
PRE_TOKENIZERS = [
    *(
        pre_tokenizers.BertPreTokenizer(),
        pre_tokenizers.ByteLevel(),
        pre_tokenizers.CharDelimiterSplit("a"),
    ),
    *(pre_tokenizers.Digits(True), pre_tokenizers.FixedLength(5), pre_tokenizers.Metaspace()),
    *(pre_tokenizers.Punctuation(), pre_tokenizers.Split(Regex(r"\s+"), "isolated")),
    *(
        pre_tokenizers.UnicodeScripts(),
        pre_tokenizers.Whitespace(),
        pre_tokenizers.WhitespaceSplit(),
    ),
]
DECODERS = [
    *(
        decoders.BPEDecoder(),
        decoders.ByteFallback(),
        decoders.ByteLevel(),
        decoders.CTC(),
        decoders.Fuse(),
    ),
    *(
        decoders.Metaspace(),
        decoders.Replace("\u2581", " "),
        decoders.Strip(" ", 1, 0),
        decoders.WordPiece(),
    ),
]
TEMPLATE = processors.TemplateProcessing(
    single="[UNK] $A", pair="$A $B", special_tokens=[("[UNK]", 0)]
)
PROCESSORS = [TEMPLATE, processors.ByteLevel(), processors.BertProcessing(("a", 1), ("b", 2))]


def with_parts(parts):
    """A small tokenizer.json with these."""
    return json.dumps(json.loads(Tokenizer(MODELS[0]).to_str()) | parts)


def added(*contents):
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized", "special"), False)
    return {"added_tokens": [{"id": 30 + i, "content": c, **flags} for i, c in enumerate(contents)]}


def model(kind, **options):
    return {"model": json.loads(Tokenizer(MODELS[kind]).to_str())["model"] | options}


def nested(depth):
    return {"type": "Sequence", "normalizers": [nested(depth - 1)] if depth else []}


METASPACE = {"type": "Metaspace", "replacement": "_", "prepend_scheme": "always", "split": True}
FIXED = {"type": "FixedLength", "length": 0}
HOSTILE = [
    (chain(4, replace("a" * 100)), "a text 1.04e.08 times as long; expected at most 100"),
    (chain(12, replace("a" * 9) | {"type": "?"}), "times as long"),  # it is read as a Replace
    (chain(2, replace("\ufdfa")), "times as long"),  # 18 characters in NFKD
    (chain(9, replace("a") | {"pattern": {"String": ""}}), "times as long"),
    (chain(9, replace("a"), "decoder"), "times as long"),
    (chain(3, {"type": "Prepend", "prepend": "a" * 9}), "times as long"),
    (chain(20, {"type": "ByteLevel"}), "times as long"),
    (chain(20, METASPACE, "pre_tokenizer"), "times as long"),
    (chain(20, {"type": "BPEDecoder", "suffix": ""}, "decoder"), "times as long"),
    (chain(5000, {"type": "NFC"}), "are too long"),
    (chain(1, replace("", "(a|b)" * 10_000)), "are too long"),
    (chain(1, FIXED, "pre_tokenizer"), "FixedLength has length 0"),
    (added(*["a" * 999] * 20_000), "the tokens have 19,980,000 bytes"),
    (added(*["\u6771" * 900] * 2000), "the tokens have 5,400,000 bytes"),
    (added("a" * 10**6), "a token has more than 1000 characters"),
    (model(2, continuing_subword_prefix="a" * 10**6), "a token has more than 1000"),
    (model(1, merges=[["c", "\u2581"]]), "a merge lacks continuing_subword_prefix"),
    (model(0, dropout=0.5), "it has dropout, which makes ids random"),  # AutoTokenizer's, too
    (model(2, max_input_chars_per_word=10**9), "max_input_chars_per_word is 1000000000"),
    (model(4, vocab=[["a" * 300, 0.0]]), "a token has more than 256 characters"),
    (model(4, vocab=[["a" * 250, 0.0]] * 50_000), "the tokens have 12,500,000 bytes"),
    (model(4, vocab=[["\u6771" * 250, 0.0]] * 7000), "the tokens have 5,250,000 bytes"),
    ({"normalizer": nested(300)}, "not a valid tokenizer.json: recursion limit"),
    ({"normalizer": {"type": "Precompiled"}}, "a value is missing or of another type"),
    (precompiled(size=2**32 - 4), "precompiled_charsmap is damaged"),
    (precompiled(size=0), "is damaged"),
    (precompiled(n_units=255), "is damaged"),
    (precompiled(offset=1 << 20), "is damaged"),
    (precompiled(value=99), "is damaged"),
    (precompiled(replacements="é\0".encode(), value=1), "is damaged"),
    (precompiled(replacements=b"a" * 21 + b"\0"), "replaces a character by 21"),
]


@pytest.mark.parametrize(("parts", "sentence"), HOSTILE)
def test_refused_before_it_is_run(parts, sentence, capfd):
    with pytest.raises(ValueError, match=sentence):
        load_hf_tokenizer(with_parts(parts))
    assert "panicked" not in capfd.readouterr().err


def test_templates_are_short():
    """Each of these 20,000 tokens stands for 50,000 ids."""
    tokens = {"e": {"id": "e", "ids": [5] * 50_000, "tokens": ["e"] * 50_000}}
    single = [{"SpecialToken": {"id": "e"}}] * 20_000 + [{"Sequence": {"id": "A"}}]
    with pytest.raises(TokenizerError, match="the template has more than 16 ids"):
        template_of({"type": "TemplateProcessing", "single": single, "special_tokens": tokens})
    for ids in (16, 17):
        state = {"kind": "hub", "text": with_parts({}), "specials": {"end": 0}, "vocab_size": 20}
        with pytest.raises(ValueError, match="more than 16 ids") if ids > 16 else nullcontext():
            tokenizer_from_state(state | {"template": [[0] * 8, [0] * (ids - 8)]})


def test_a_key_that_occurs_twice():
    with pytest.raises(ValueError, match="a key occurs twice"):
        load_hf_tokenizer(with_parts({})[:-1] + ', "normalizer": null}')


def test_padding_truncation_and_templates_are_not_applied():
    tokenizer = Tokenizer.from_str(with_parts({}))
    tokenizer.enable_padding(length=10**9)
    tokenizer.enable_truncation(1)
    tokenizer.post_processor = processors.TemplateProcessing(single=" ".join(["$A"] * 1000))
    assert len(load_hf_tokenizer(tokenizer.to_str()).encode("abc").ids) == 3


PUBLISHED = """Albert Bart Bert Camembert CLIP CodeLlama Cohere DebertaV2 Gemma GPT2 GPTNeoX Llama MBart50
Nllb Qwen2 RemBert Siglip2 T5 Whisper XLMRoberta XLNet"""


@pytest.mark.parametrize("name", re.findall(r"\w+", PUBLISHED))
def test_published_kinds_are_accepted(name):
    """With the steps that transformers gives them, and a character map where the model is Unigram."""
    theirs = getattr(transformers, f"{name}Tokenizer")().backend_tokenizer
    theirs.add_tokens([f"<|reserved_{i}|>" for i in range(3000)] + list("act"))
    if isinstance(theirs.model, models.Unigram):
        before = [theirs.normalizer] if theirs.normalizer else []
        theirs.normalizer = normalizers.Sequence([*before, normalizers.Precompiled(charsmap())])
    text = theirs.to_str()
    theirs, ours = Tokenizer.from_str(text), load_hf_tokenizer(text)
    ids = theirs.encode("cat", add_special_tokens=False).ids
    assert (
        len(ids) >= 3 and ours.encode("cat").ids == ids and ours.decode(ids) == theirs.decode(ids)
    )


@pytest.mark.parametrize(
    "pattern",
    ["", "x*", "x*|.", "(?=l)", "(?!)", "[^é]", "(", pytest.param("." * 10**6, id="long")],
)
def test_patterns_that_do_not_split_every_text(pattern, capfd):
    """tiktoken would panic at an empty match, and drop what is not matched."""
    with pytest.raises(ValueError, match="the pattern"):
        BytePairTokenizer(pattern, BYTES, {"end": 256})
    assert "panicked" not in capfd.readouterr().err
    ours = BytePairTokenizer(r"(?=q)|(?s:.)", BYTES, {"end": 256})
    with pytest.raises(ValueError, match="the pattern '.*' matches the empty string"):
        ours.encode("q")


SLOW = "(?:a|a(?=))*b|."


def test_a_text_at_which_the_libraries_give_up():
    """onig panics, tiktoken raises; both are errors of the run's folder."""
    split = {"type": "Split", "pattern": {"Regex": SLOW}, "behavior": "Isolated", "invert": False}
    hub_tokenizer = HubTokenizer(with_parts({"pre_tokenizer": split}), {"end": 0}, 64)
    for tokenizer in (hub_tokenizer, BytePairTokenizer(rf"(?s:{SLOW})", BYTES, {"end": 256})):
        with pytest.raises(ValueError, match="^tokenizer.json cannot encode 'aaa.*limit") as raised:
            tokenizer.encode("a" * 100)
        assert raised.value.exit_code == 4 and "\n" not in str(raised.value)


def test_interrupts_are_not_errors_of_a_tokenizer():
    for interrupt in (KeyboardInterrupt, SystemExit, MemoryError):
        with pytest.raises(interrupt), as_tokenizer_error("not valid"):
            raise interrupt


def test_a_run_and_a_hub_folder(folder, tmp_path, capsys):
    """The file is named, and nothing of a refused import stays."""
    bomb = chain(4, replace("a" * 100))
    state = {"kind": "hub", "specials": {"end": 0}, "vocab_size": 64, "text": with_parts(bomb)}
    (folder / "tokenizer.json").write_text(json.dumps(state))
    with pytest.raises(
        CheckpointError, match="run/tokenizer.json cannot be read: .* times as long"
    ):
        read_tokenizer(folder)
    save(build_hf("bert"), tmp_path / "hf")
    path = tmp_path / "hf/tokenizer.json"
    for parts in (bomb, precompiled(value=99)):
        path.write_text(json.dumps(json.loads(path.read_text()) | parts))
        assert run_command(hub, ["import", "--from", str(tmp_path / "hf"), "--to", "runs/new"]) == 4
        error = capsys.readouterr().err
        assert error.startswith(f"error: {path} cannot be used: ") and error.count("\n") == 1, error
        assert os.listdir("runs") == ["run"]


JUNK = [
    *(0, 1, -1, 2**32, 10**9, 10**18, 0.5, -1e300, True, False, None, [], {}, [[]], [["a", "b"]]),
    *("", "a", ".", "x*", "(?=a)", "(a|a(?=))*b", "$A", "\ufdfa", "a" * 40, "a" * 2000, "AAAA", "#"),
    *("<0x61>", "Sequence", "Replace", "Precompiled", {"Regex": "."}, {"String": ""}, {"String": "ab"}),
]  # fmt: skip


def draw_spec(draw):
    """A tokenizer.json with some of the parts above."""
    tokenizer = Tokenizer(draw.choice(MODELS))
    tokenizer.normalizer = normalizers.Sequence(draw.sample(NORMALIZERS, draw.randrange(4)))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        draw.sample(PRE_TOKENIZERS, draw.randrange(4))
    )
    tokenizer.decoder = decoders.Sequence(draw.sample(DECODERS, draw.randrange(4)))
    tokenizer.post_processor = draw.choice(PROCESSORS)
    tokenizer.add_special_tokens(["[UNK]"])
    tokenizer.add_tokens(["cat", "\u2581"])
    return json.loads(tokenizer.to_str())


def places(node):
    """(parent, key) of every value in nested lists and objects."""
    for key in range(len(node)) if isinstance(node, list) else list(node):
        yield node, key
        if isinstance(node[key], list | dict):
            yield from places(node[key])


def mutate(spec, draw):
    """Replace a value by junk, mostly of its type, or by another one; repeat a list, or leave a key out."""
    everything = list(places(spec))
    (node, key), (other, other_key) = draw.choices(everything, k=2)
    kind = draw.randrange(6)
    if kind == 0:
        del node[key]
    elif kind == 1 and isinstance(node, list):
        node *= draw.choice([2, 30])
    elif kind == 2:
        node[key] = copy.deepcopy(other[other_key])
    else:
        junk = [value for value in JUNK if kind > 3 and type(value) is type(node[key])]
        node[key] = copy.deepcopy(draw.choice(junk or JUNK))


def fuzz(seeds):
    refused = 0
    for seed in seeds:
        draw = random.Random(seed)
        spec = draw_spec(draw)
        for _ in range(draw.randrange(1, 4)):
            mutate(spec, draw)
        try:
            tokenizer = HubTokenizer(json.dumps(spec), {"end": 0}, 64)
            tokenizer.decode(tokenizer.encode(TEXT).tolist())
        except ValueError:
            refused += 1
        except BaseException as error:
            raise AssertionError(f"seed {seed}") from error
    assert 0 < refused < len(seeds)


LARGE = [  # close to each limit
    chain(1, replace("a" * 98)),
    chain(200, replace("", "b")),
    chain(1, {"type": "FixedLength", "length": 256}, "pre_tokenizer")
    | model(2, max_input_chars_per_word=256),
    model(4, vocab=[["a" * n, 0.0] for n in range(1, 257)]),
    model(4, vocab=[["".join(map(chr, range(n, n + 31))), 0.0] for n in range(0x100, 0xD000)]),
    added(*(f"<{i}>" + "\u6771" * 900 for i in range(1800))),
]


def encode_long(parts):
    tokenizer = HubTokenizer(with_parts(parts), {"end": 0}, 200_000)
    tokenizer.decode(tokenizer.encode("a" * 100_000).tolist())


def within(gigabytes, seconds, function, *args):
    """function(*args) in a process that may take so much more memory, and so much time."""
    if pid := fork():
        assert exit_code(pid) == 0
        return
    code = 1
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        limit = pages * resource.getpagesize() + int(gigabytes * 2**30)
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
        function(*args)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def test_fuzz_smoke():
    within(1, 30, fuzz, range(600))


@pytest.mark.faults
@pytest.mark.parametrize("first", range(0, 30_000, 1000))
def test_fuzz(first):
    within(1, 200, fuzz, range(first, first + 1000))


@pytest.mark.faults
@pytest.mark.parametrize("parts", LARGE)
def test_a_long_text_at_the_limits(parts):
    within(3, 60, encode_long, parts)
