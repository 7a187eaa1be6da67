"""Sources of pairs yield both texts, in order; an error names the place of a bad pair."""

import ast

import pytest

from configs.errors import DataError
from data import sources
from data.prepare import split_chunks
from data.readers import stdlib_files
from tests.data.corpora import source
from tests.data.test_sources import write_table

ROWS = [{"en": f"word {i}", "de": f"Wort {i}"} for i in range(30)]


def texts(found):
    return [tuple(document.texts) for document in found.documents()]


def test_tsv_has_no_quotes(tmp_path):
    (tmp_path / "t.tsv").write_text('source\ttarget\n"Hi\tA\nx\tB\ny"\tC "D", E\n')
    expected = [('"Hi', "A"), ("x", "B"), ('y"', 'C "D", E')]
    assert texts(source("pairs", path=str(tmp_path / "t.tsv"))) == expected


def test_parallel_files(tmp_path):
    (tmp_path / "a.en").write_text("one\ntwo\n")
    (tmp_path / "a.de").write_text("eins\r\nzwei")
    found = source("parallel", source=str(tmp_path / "a.en"), target=str(tmp_path / "a.de"))
    assert texts(found) == [("one", "eins"), ("two", "zwei")]
    (tmp_path / "a.de").write_text("eins\nzwei\ndrei\n")
    with pytest.raises(DataError, match="need equally many lines; only one of them has a line 3"):
        texts(found)

    (tmp_path / "a.de").unlink()
    with pytest.raises(FileNotFoundError, match=r"a\.de"):
        found.version()


@pytest.mark.parametrize("row", [{"en": "  ", "de": "x"}, {"en": "x", "de": ""}])
def test_an_empty_side_is_an_error(tmp_path, row):
    path = write_table(tmp_path / "pairs.jsonl", [*ROWS[:4], row])
    with pytest.raises(DataError, match=r"pairs\.jsonl:5: the source or the target is empty"):
        list(split_chunks(source("pairs", path=str(path), source="en", target="de"), []))


def test_docstrings_of_the_standard_library(monkeypatch):
    """Of a tenth of its files."""
    monkeypatch.setattr(sources, "stdlib_files", lambda: stdlib_files()[::10])
    pairs = texts(source("docstrings"))
    assert 300 < len(pairs) < 1500 and texts(source("docstrings")) == pairs
    for body, line in pairs[::5]:
        if body.startswith("def "):  # a text in another one is less indented
            assert line and "\n" not in line
            assert line not in (ast.get_docstring(ast.parse(body).body[0]) or "")


def test_synthetic_targets_are_right():
    pairs = texts(source("synthetic", size=2500, min_length=2, max_length=5))
    assert len(pairs) == 2500 and all(target == text[::-1] for text, target in pairs)
    assert {len(text) for text, _ in pairs} == {2, 3, 4, 5}
    assert pairs[:300] == texts(source("synthetic", size=300, min_length=2, max_length=5))
    assert len(set(pairs)) > 2000
    with pytest.raises(ValueError, match="max_length is 1; it must be at least min_length, 2"):
        source("synthetic", min_length=2, max_length=1)
