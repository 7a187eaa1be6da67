"""The split depends on content alone, and a cached corpus is complete and never stale."""

import json
import os
import re
import tracemalloc

import numpy as np
import pytest

from configs.errors import DataError
from configs.parts import LOADED
from data import prepare, readers
from data.prepare import split_chunks
from data.store import TRAIN, VALIDATION
from tests.data.corpora import corpus, source, text_corpus
from tests.data.test_sources import write_table
from tests.parts import ROOT

TEXT = "A line of text with 12 numbers, naïve words\n\n  and white space.\n" * 60


def lines(tmp_path, rows, val_fraction=0.2):
    """(the lines for training, those for validation)"""
    (tmp_path / "t.txt").write_text("\n".join(rows))
    options = {"split_on": "line", "val_fraction": val_fraction}
    chunks = list(split_chunks(source("text", path=str(tmp_path / "t.txt"), **options), []))
    splits = (TRAIN, VALIDATION)
    return [[chunk.texts[0] for chunk in chunks if chunk.split == split] for split in splits]


ROWS = [f"line {i}" for i in range(2000)]


def test_splits_are_complete_and_disjoint(tmp_path):
    train, validation = lines(tmp_path, ROWS)
    assert sorted(train + validation) == sorted(ROWS)
    assert 330 < len(validation) < 470


def test_adding_and_reordering_move_no_document(tmp_path):
    _, before = lines(tmp_path, ROWS[:1000])
    _, after = lines(tmp_path, ROWS[::-1])
    assert {*before} == {*after} & {*ROWS[:1000]}


@pytest.mark.parametrize("n", [2, 3, 10, 50])
def test_of_few_documents_one_is_for_validation(tmp_path, n):
    assert [*map(len, lines(tmp_path, ROWS[:n], val_fraction=1e-6))] == [n - 1, 1]


def test_the_tail_of_a_single_document_is_for_validation(tmp_path):
    text = "é" * 999 + "東"
    (tmp_path / "t.txt").write_text(text)
    found = source("text", path=str(tmp_path / "t.txt"), val_fraction=0.1)
    chunks = list(split_chunks(found, []))
    assert [(chunk.split, chunk.texts[0], chunk.is_last) for chunk in chunks] == [
        (TRAIN, text[:900], True),
        (VALIDATION, text[900:], True),
    ]
    assert [chunk.n_bytes() for chunk in chunks] == [1800, 201]


def test_a_long_run_of_spaces_can_be_encoded(tmp_path):
    """The regexes of tokenizers overflow near 10^6 of them."""
    text = "a few words " * 1000 + " " * 1_200_000 + "and more " * 1000
    assert text_corpus(tmp_path, text, tokenizer="bpe").train.n_bytes > 1_000_000


@pytest.mark.parametrize(
    ("rows", "val_fraction", "split"),
    [(["same"] * 9, 0.05, "train"), (ROWS[:600], 1e-6, "validation")],
)
def test_an_empty_split(tmp_path, rows, val_fraction, split):
    (tmp_path / "t.txt").write_text("\n".join(rows))
    found = source("text", path=str(tmp_path / "t.txt"), split_on="line")
    with pytest.raises(DataError, match=f"the {split} split is empty; change data.val_fraction or"):
        corpus(tmp_path, found, val_fraction=val_fraction)


def test_tokens_are_those_of_the_text(tmp_path):
    for i in range(40):
        (tmp_path / f"{i:02}.txt").write_text(f"document {i:02}")
    made = corpus(tmp_path, source("text", path=str(tmp_path / "*.txt")), val_fraction=0.3)
    texts = []
    for part in (made.train, made.validation):
        *found, last = made.tokenizer.decode_with_specials(part.tokens.tolist()).split("<end>")
        assert found == sorted(found) and not last, "in the order of the source"
        assert len(found) == part.n_items
        assert part.n_bytes == sum(map(len, found)) == part.n_tokens - part.n_items
        texts += found

    assert sorted(texts) == [f"document {i:02}" for i in range(40)]


def test_pairs_are_those_of_the_source(tmp_path):
    found = source("synthetic", size=500)
    made = corpus(tmp_path, found, val_fraction=0.2)
    shown = []
    for part in (made.train, made.validation):
        texts = part.texts(*(bounds.flatten() for bounds in part.pairs()))
        shown += [made.tokenizer.decode_with_specials(text.tolist()) for text in texts]

    pairs = [tuple(document.texts) for document in found.documents()]
    expected = [text for source, target in pairs for text in (source, f"{target}<end>")]
    assert sorted(shown) == sorted(expected)


@pytest.mark.parametrize("tokenizer", ["bpe", "char"])
def test_a_long_document_is_encoded_as_a_whole(tmp_path, monkeypatch, tokenizer):
    text = "".join(path.read_text("utf-8") for path in readers.stdlib_files()[::60])[:300_000]
    monkeypatch.setattr(readers, "CHUNK_CHARS", 5000)
    monkeypatch.setattr(prepare, "JOB_BYTES", 9000)
    made = text_corpus(tmp_path, text, tokenizer=tokenizer)
    ids = [token for part in (made.train, made.validation) for token in part.tokens.tolist()]
    cut = int(len(text) * 0.95)
    encode, end = made.tokenizer.encode, made.tokenizer.specials["end"]
    assert ids == [*encode(text[:cut]).tolist(), end, *encode(text[cut:]).tolist(), end]


@pytest.mark.parametrize(("n_characters", "dtype"), [(1000, "uint16"), (70_000, "uint32")])
def test_the_dtype_follows_from_the_vocabulary(tmp_path, n_characters, dtype):
    text = "".join(map(chr, range(0x10000, 0x10000 + n_characters)))
    made = text_corpus(tmp_path, text, tokenizer="char")
    assert made.train.tokens.dtype == dtype
    assert made.tokenizer.decode(made.validation.tokens.tolist()) == text[-n_characters // 20 :]


@pytest.fixture
def build(tmp_path):
    """build(changes of the source, **options): the corpus of text.txt"""
    (tmp_path / "text.txt").write_text(TEXT)

    def build(changes=None, **options):
        found = source("text", path=str(tmp_path / "text.txt"), **changes or {})
        return corpus(tmp_path, found, **options)

    return build


def test_a_cached_corpus_is_reused(build):
    reports = []
    first = build(report=reports.append)
    assert reports[-1] == len(TEXT.encode())
    reports.clear()
    again = build(report=reports.append)
    assert not reports and again.folder == first.folder
    assert np.array_equal(again.train.tokens, first.train.tokens)
    assert again.tokenizer.state() == first.tokenizer.state()


def test_every_change_makes_a_new_corpus(build, tmp_path, monkeypatch):
    path = tmp_path / "text.txt"
    made = [
        build(),
        build({"split_on": "line"}),
        build(val_fraction=0.2),
        build(tokenizer="char"),
        build(specials=("end",)),
    ]
    path.write_text(TEXT.replace("12", "13"))
    made.append(build())
    assert len({corpus.content_hash for corpus in made}) == 6

    path.write_text(TEXT)
    os.utime(path, (1, 1))
    made.append(build())
    monkeypatch.setitem(LOADED, ROOT / "data/sources.py", "hash")  # as of an own part
    made.append(build())
    monkeypatch.setattr(prepare, "FORMAT", 99)
    made.append(build())
    assert len({corpus.folder for corpus in made}) == 9, "a touched file is tokenized anew,"
    hashes = {corpus.content_hash for corpus in made[6:]}
    assert hashes == {made[0].content_hash}, "and a run on it can be resumed"


FILES = ["train.tokens", "train.ends", "validation.tokens", "validation.ends", "index.json"]


@pytest.mark.parametrize("name", FILES)
def test_files_that_a_power_cut_has_spoiled(build, name):
    path = build().folder / name
    whole = path.read_bytes()
    for damaged in (b"", whole[:-1], whole[:-8], None):
        path.unlink() if damaged is None else path.write_bytes(damaged)
        with pytest.raises(DataError, match="is damaged .*; remove it and run again to rebuild it"):
            build()
    path.write_bytes(whole)
    assert build().train.n_tokens > 0


def test_max_tokens(tmp_path):
    (tmp_path / "set").mkdir()
    write_table(tmp_path / "set/train.jsonl", [{"text": f"row {i} " * 20} for i in range(4000)])
    part = {"id": str(tmp_path / "set"), "streaming": True}
    some = corpus(tmp_path, source("hub", max_tokens=100_001, **part)).train
    every = corpus(tmp_path, source("hub", **part)).train
    assert 100_001 <= some.n_tokens < 100_200 < every.n_tokens
    assert np.array_equal(some.tokens, every.tokens[: some.n_tokens])
    with pytest.raises(ValueError, match="max_tokens is 0; expected"):
        source("hub", max_tokens=0, **part)


def test_the_cache_is_not_text(tmp_path):
    """Otherwise it would change the text it is built from."""
    for _ in range(2):
        (tmp_path / "a.txt").write_text(TEXT)
        made = corpus(tmp_path, source("text", path=str(tmp_path), cache=str(tmp_path / "cache")))
    assert made.train.n_bytes + made.validation.n_bytes == len(TEXT.encode())


@pytest.mark.parametrize(("split_on", "space"), [("line", " "), ("file", "_")])
def test_a_large_file_needs_little_memory(tmp_path, monkeypatch, split_on, space):
    """Even if it is a single word."""
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    monkeypatch.setattr(readers, "CHUNK_CHARS", 1 << 15)
    monkeypatch.setattr(prepare, "JOB_BYTES", 1 << 13)
    path = tmp_path / "large.txt"
    text = "".join(f"{i} lines of a large file, each a little longer\n" for i in range(60_000))
    path.write_text(text if space == " " else text.replace(" ", space).replace("\n", space))
    found = source("text", path=str(path), split_on=split_on)
    tracemalloc.start()
    made = corpus(tmp_path, found)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert made.train.n_bytes + made.validation.n_bytes > 2.5e6
    assert peak < 1.5e6  # jobs that wait for a thread count, too


BAD_ROWS = b"""{"text": "first"}
{"text": null}
{"text": ""}
{"text": "caf\xe9"}
{"text": "half \\ud83d"}
{"text":
[1]
{"text": "last", "note": "\xe9"}
"""


def test_rows_that_cannot_be_used_are_skipped_and_named(tmp_path, capsys):
    (tmp_path / "rows.jsonl").write_bytes(BAD_ROWS)
    (tmp_path / "cut.csv").write_text('text\nhalf of\n"a" b\nagain\n"it\n')

    def build(**changes):
        return corpus(tmp_path, source("table", path=str(tmp_path), **changes), val_fraction=0.4)

    for _ in range(2):  # also from the cache
        made = build(on_error="skip")
        shown = capsys.readouterr().err
        assert made.train.n_items + made.validation.n_items == 4
        assert "warning: 8 rows or files were skipped, the first of them:" in shown
        places = re.findall(r"  .*/(\S+?):? ", shown)
        assert places == ["cut.csv:3", "cut.csv:5", *(f"rows.jsonl:{n}" for n in (2, 3, 4))]
    (tmp_path / "cut.csv").unlink()
    with pytest.raises(DataError, match="rows.jsonl:2 has None as 'text'"):
        build()
    with pytest.raises(DataError, match="there is no text: .*jsonl:1 has None as 'txt', not text"):
        build(on_error="skip", field="txt")


def test_a_file_that_is_no_text_is_skipped_as_a_whole(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(readers, "CHUNK_CHARS", 5)
    for i, content in enumerate([b"first text", b"second, long \xff", b"third text"]):
        (tmp_path / f"{i}.txt").write_bytes(content)
    made = corpus(tmp_path, source("text", path=str(tmp_path), on_error="skip"))
    assert made.train.n_bytes + made.validation.n_bytes == 20
    assert "1 rows or files were skipped" in capsys.readouterr().err


def test_settings_as_by_default_are_not_in_the_hash():
    """So that runs on a source that gets a new setting can be resumed."""
    found = source("table", path="x", cache="anywhere")
    expected = {"cache": None, "val_fraction": 0.05, "path": "x", "field": "text"}
    assert json.dumps(prepare.settings_of(found)) == json.dumps(expected)
