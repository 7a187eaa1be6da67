"""The split depends on content alone, and a cached corpus is complete and never stale."""

import os
import re
import tracemalloc
from collections import Counter
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest

from configs.errors import DataError
from configs.parts import LOADED
from data import prepare
from data.store import TRAIN, VALIDATION
from tests.data.corpora import SPECIALS, chunks_of, corpus, source, text_corpus, trainer, write_rows
from tests.data.test_tokenizer import library as python_text
from tests.parts import ROOT, refused

TEXT = "A line of text with 12 numbers, naïve words\n\n  and white space.\n" * 60
ROWS = [f"line {i}" for i in range(2000)]


def lines(rows, val_fraction):
    Path("t.txt").write_text("\n".join(rows))
    return source("text", path="t.txt", split_on="line", val_fraction=val_fraction)


def split_lines(rows, val_fraction=0.2):
    """{split: its lines}"""
    splits = {TRAIN: [], VALIDATION: []}
    for chunk in chunks_of(lines(rows, val_fraction)):
        splits[chunk.split] += chunk.texts
    return splits


def test_every_line_has_a_split_whatever_the_others_are():
    splits = split_lines(ROWS)
    found = splits[VALIDATION]
    assert sorted(splits[TRAIN] + found) == sorted(ROWS)
    assert 330 < len(found) < 470
    fewer = split_lines(ROWS[1000::-1])
    assert {*fewer[VALIDATION]} == {*found} & {*ROWS[:1001]}


@pytest.mark.parametrize("n", [2, 3, 50])
def test_of_few_documents_one_is_for_validation(n):
    splits = split_lines(ROWS[:n], val_fraction=1e-6)
    assert len(splits[TRAIN]) == n - 1
    assert len(splits[VALIDATION]) == 1


def test_the_tail_of_a_single_document_is_for_validation():
    text = "é" * 999 + "東"
    Path("t.txt").write_text(text)
    chunks = chunks_of(source("text", path="t.txt", val_fraction=0.1))
    assert [chunk[:3] for chunk in chunks] == [
        (TRAIN, [text[:900]], True),
        (VALIDATION, [text[900:]], True),
    ]
    assert [chunk.n_bytes() for chunk in chunks] == [1800, 201]


def test_a_long_run_of_spaces_can_be_encoded():
    """The regexes of tokenizers overflow near 10^6 of them."""
    text = "a few words " * 1000 + " " * 1_200_000 + "and more " * 1000
    assert text_corpus(text, "bpe").train.n_bytes > 1_000_000


@pytest.mark.parametrize(
    "rows, val_fraction, split",
    [(["same"] * 9, 0.05, "train"), (ROWS[:600], 1e-6, "validation")],
)
def test_an_empty_split(rows, val_fraction, split):
    with refused(f"the {split} split is empty; change data.val_fraction or", DataError):
        corpus(lines(rows, val_fraction))


def test_tokens_are_those_of_the_text():
    for i in range(40):
        Path(f"{i:02}.txt").write_text(f"document {i:02}")
    made = corpus(source("text", path="*.txt", val_fraction=0.3))
    texts = []
    for part in (made.train, made.validation):
        text = made.tokenizer.decode_with_specials(part.tokens.tolist())
        *found, last = text.split("<end>")
        assert found == sorted(found) and not last, "in the order of the source"
        assert len(found) == part.n_items
        assert part.tokens.itemsize == 2
        assert part.n_bytes == sum(map(len, found)) == part.n_tokens - part.n_items
        texts += found

    assert sorted(texts) == [f"document {i:02}" for i in range(40)]


def test_pairs_are_those_of_the_source():
    found = source("synthetic", size=500, val_fraction=0.2)
    made = corpus(found)
    shown = []
    for part in (made.train, made.validation):
        starts, lengths = part.pairs()
        for text in map(part.ids, starts.flatten(), lengths.flatten()):
            shown.append(made.tokenizer.decode_with_specials(text.tolist()))

    expected = []
    for document in found.documents():
        text, target = document.texts
        expected += [text, f"{target}<end>"]
    assert sorted(shown) == sorted(expected)


@pytest.mark.parametrize("tokenizer", ["bpe", "char"])
def test_a_long_document_is_encoded_as_a_whole(monkeypatch, tokenizer):
    monkeypatch.setattr("data.readers.CHUNK_CHARS", 5000)
    monkeypatch.setattr("data.prepare.JOB_BYTES", 9000)
    text = python_text(300_000)
    made = text_corpus(text, tokenizer)
    end = made.tokenizer.specials["end"]
    cut = int(len(text) * 0.95)
    encode = made.tokenizer.encode
    assert made.train.tokens.tolist() == [*encode(text[:cut]), end]
    assert made.validation.tokens.tolist() == [*encode(text[cut:]), end]


def test_more_than_65536_tokens():
    text = "".join(map(chr, range(0x10000, 0x10000 + 70_000)))
    made = text_corpus(text, "char")
    assert made.tokenizer.decode(made.validation.tokens.tolist()) == text[-3500:]


def test_a_cached_corpus_is_reused(monkeypatch):
    report = Mock(wraps=prepare.with_progress)
    monkeypatch.setattr("data.prepare.with_progress", report)
    first = text_corpus(TEXT)
    assert report.call_args.args[1] == len(TEXT.encode())
    report.reset_mock()
    os.utime("text.txt", (1, 1))
    other = text_corpus(TEXT)
    assert report.called, "a text that was written again is tokenized again,"
    assert other.train.folder != first.train.folder
    assert other.content_hash == first.content_hash, "and a run on it can be resumed"

    report.reset_mock()
    again = corpus(source("text", path="text.txt"))
    assert not report.called and again.train.folder == other.train.folder
    assert np.array_equal(again.train.tokens, first.train.tokens)
    assert again.tokenizer.state() == first.tokenizer.state()


def test_every_change_makes_a_new_corpus(monkeypatch):
    def build(tokenizer="byte", specials=SPECIALS, **changes):
        return corpus(source("text", path="text.txt", **changes), tokenizer, specials)

    Path("text.txt").write_text(TEXT)
    made = [
        build(),
        build(split_on="line"),
        build(val_fraction=0.2),
        build(tokenizer="char"),
        build(specials=("end",)),
    ]
    Path("text.txt").write_text(TEXT.replace("12", "13"))
    made.append(build())
    assert len({corpus.content_hash for corpus in made}) == 6

    monkeypatch.setitem(LOADED, ROOT / "data/sources/files.py", "hash")  # as of an own part
    made.append(build())
    monkeypatch.setattr("data.prepare.FORMAT", 99)
    made.append(build())
    assert len({corpus.train.folder for corpus in made}) == 8


FILES = ["train.tokens", "train.ends", "validation.tokens", "validation.ends", "index.json"]


@pytest.mark.parametrize("name", FILES)
def test_files_that_a_power_cut_has_spoiled(name):
    path = text_corpus(TEXT).train.folder / name
    found = source("text", path="text.txt")
    whole = path.read_bytes()
    for damaged in (b"", whole[:-1], whole[:-8], None):
        path.unlink() if damaged is None else path.write_bytes(damaged)
        with refused("is damaged; remove it and run again to rebuild it", DataError):
            corpus(found)
    path.write_bytes(whole)
    assert corpus(found).train.n_tokens > 0


@pytest.mark.parametrize("name", FILES[:4])
def test_changed_bytes_are_noticed(name, monkeypatch):
    """All of them when a run is resumed, and some of a large file at each start."""
    monkeypatch.setattr("data.store.BLOCK", 16)
    monkeypatch.setattr("data.store.SAMPLED", 2)
    path = text_corpus("\n".join(ROWS[:400]), split_on="line").train.folder / name
    whole = path.read_bytes()
    found = source("text", path="text.txt", split_on="line")
    places = range(0, len(whole), 61)
    noticed = Counter()
    for place in places:
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        for verify in (True, False):
            try:
                prepare.prepare(found, trainer("byte"), SPECIALS, verify)
            except DataError as error:
                assert f"{name} does not match its checksum" in str(error)
                noticed[verify] += 1
    assert noticed[True] == len(places) > noticed[False] > 0


def test_max_tokens():
    Path("set").mkdir()
    write_rows("set/train.jsonl", [{"text": f"row {i} " * 20} for i in range(2000)])
    part = {"id": "set", "streaming": True}
    some = corpus(source("hub", max_tokens=100_001, **part)).train
    every = corpus(source("hub", **part)).train
    assert 100_001 <= some.n_tokens < 100_200 < every.n_tokens
    assert np.array_equal(some.tokens, every.tokens[: some.n_tokens])


def test_the_cache_is_not_text():
    """Otherwise it would change the text it is built from."""
    for _ in range(2):
        Path("a.txt").write_text(TEXT)
        made = corpus(source("text", path="."))
    assert made.train.n_bytes + made.validation.n_bytes == len(TEXT.encode())


@pytest.mark.parametrize("split_on, space", [("line", "\n"), ("file", "_")])
def test_a_large_file_needs_little_memory(monkeypatch, split_on, space):
    """Even if it is a single word."""
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    monkeypatch.setattr("data.readers.CHUNK_CHARS", 1 << 13)
    monkeypatch.setattr("data.prepare.JOB_BYTES", 1 << 12)
    text = space.join(f"{i}_lines_of_a_large_file,_each_a_little_longer" for i in range(25_000))
    Path("large.txt").write_text(text)
    found = source("text", path="large.txt", split_on=split_on)
    tracemalloc.start()
    made = corpus(found)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert made.train.n_bytes + made.validation.n_bytes > 1.1e6
    assert peak < 0.95e6  # jobs that wait for a thread count, too


BAD_ROWS = b"""{"text": "first"}
{"text": null}
{"text": ""}
{"text": "caf\xe9"}
{"text": "half \\ud83d"}
{"text":
[1]
{"text": "last", "note": "\xe9"}
"""


def test_rows_that_cannot_be_used_are_skipped_and_named(capsys):
    Path("rows.jsonl").write_bytes(BAD_ROWS)
    Path("cut.csv").write_text('text\nhalf of\n"a" b\nagain\n"it\n')

    def build(**changes):
        return corpus(source("table", path="*.*", val_fraction=0.4, **changes))

    for _ in range(2):  # also from the cache
        made = build(on_error="skip")
        shown = capsys.readouterr().err
        assert made.train.n_items + made.validation.n_items == 4
        assert "warning: 8 rows or files were skipped, the first of them:" in shown
        places = re.findall(r"  (\S+?):? ", shown)
        assert places == ["cut.csv:3", "cut.csv:5", *(f"rows.jsonl:{n}" for n in (2, 3, 4))]
    Path("cut.csv").unlink()
    with refused("rows.jsonl:2 has None as 'text'", DataError):
        build()
    with refused("there is no text: .*jsonl:1 has None as 'txt', not text", DataError):
        build(on_error="skip", field="txt")


def test_a_file_that_is_no_text_is_skipped_as_a_whole(capsys, monkeypatch):
    monkeypatch.setattr("data.readers.CHUNK_CHARS", 5)
    for i, content in enumerate([b"first text", b"second, long \xff", b"third text"]):
        Path(f"{i}.txt").write_bytes(content)
    made = corpus(source("text", path=".", on_error="skip"))
    assert made.train.n_bytes + made.validation.n_bytes == 20
    assert "1 rows or files were skipped" in capsys.readouterr().err


def test_settings_as_by_default_are_not_in_the_hash():
    """So that runs on a source that gets a new setting can be resumed."""
    found = source("table", path="x", cache="anywhere")
    settings = '{"cache": null, "val_fraction": 0.05, "path": "x", "field": "text"}'
    expected = f'[["TextTable", "ByteTrainer"], {settings}, {{}}, ["end"]]'
    assert prepare.options_of(found, trainer(), ["end"]) == expected
