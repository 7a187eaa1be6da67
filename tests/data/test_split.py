"""The split: by what a text says, never by chance, with nothing on both sides and nothing lost."""

import json

import pytest

from configs.errors import DataError
from data import readers as documents
from data.prepare import TRAIN, VALIDATION, split_chunks
from tests.data.corpora import corpus, source


def lines(tmp_path, rows, share=0.2, document="line"):
    (tmp_path / "t.txt").write_text("\n".join(rows), encoding="utf-8")
    found = list(split_chunks(source("text", path=str(tmp_path / "t.txt"), document=document), share))
    return {part: [item.texts[0] for item in found if item.part == part] for part in (TRAIN, VALIDATION)}


ROWS = [f"line {i}" for i in range(2000)]


def test_nothing_is_lost_and_nothing_on_both_sides(tmp_path):
    parts = lines(tmp_path, ROWS)
    assert sorted(parts[TRAIN] + parts[VALIDATION]) == sorted(ROWS)
    assert not set(parts[TRAIN]) & set(parts[VALIDATION])
    assert 330 < len(parts[VALIDATION]) < 470


def test_adding_and_reordering_moves_no_document(tmp_path):
    before = set(lines(tmp_path, ROWS[:1000])[VALIDATION])
    after = set(lines(tmp_path, ROWS[::-1])[VALIDATION])
    assert before == after & set(ROWS[:1000])


def test_a_greater_share_keeps_what_was_there(tmp_path):
    assert set(lines(tmp_path, ROWS, 0.1)[VALIDATION]) < set(lines(tmp_path, ROWS, 0.3)[VALIDATION])


def test_equal_documents_stay_together(tmp_path):
    parts = lines(tmp_path, ROWS[:300] * 3)
    assert all(parts[part].count(row) == 3 for part in parts for row in parts[part])


@pytest.mark.parametrize("n", [2, 3, 10, 50])
def test_of_a_few_documents_one_is_for_validation(tmp_path, n):
    parts = lines(tmp_path, ROWS[:n], share=1e-6)
    assert len(parts[VALIDATION]) == 1 and len(parts[TRAIN]) == n - 1


def test_a_document_alone_is_cut_near_its_end(tmp_path):
    text = "é" * 999 + "東"
    (tmp_path / "t.txt").write_text(text)
    found = list(split_chunks(source("text", path=str(tmp_path / "t.txt")), 0.1))
    assert [(item.part, item.texts[0], item.last, item.end) for item in found] == [
        (TRAIN, text[:900], True, False),
        (VALIDATION, text[900:], True, False),
    ]
    assert [item.n_bytes for item in found] == [1800, 201]


def test_a_document_alone_may_be_long(tmp_path, monkeypatch):
    monkeypatch.setattr(documents, "PIECE", 64)
    text = " ".join(str(i) for i in range(5000))
    (tmp_path / "t.txt").write_text(text)
    found = list(split_chunks(source("text", path=str(tmp_path / "t.txt")), 0.25))
    for part, expected in (
        (TRAIN, text[: int(len(text) * 0.75)]),
        (VALIDATION, text[int(len(text) * 0.75) :]),
    ):
        assert "".join(item.texts[0] for item in found if item.part == part) == expected
    assert max(len(item.texts[0]) for item in found) <= 128


def test_a_long_document_ends_once(tmp_path, monkeypatch):
    monkeypatch.setattr(documents, "PIECE", 64)
    for name in "ab":
        (tmp_path / f"{name}.txt").write_text(f"{name} word" * 200)
    found = list(split_chunks(source("text", path=str(tmp_path)), 0.5))
    assert len(found) > 10 and sum(item.last for item in found) == sum(item.end for item in found) == 2
    for name in "ab":
        own = [item for item in found if item.name.endswith(f"{name}.txt")]
        assert len({item.part for item in own}) == 1 and own[-1].last and own[-1].end


@pytest.mark.parametrize("rows", [[], ["", "", ""]])
def test_no_text_at_all(tmp_path, rows):
    with pytest.raises(DataError, match="there is no text: what was found is empty"):
        lines(tmp_path, rows)


def test_a_text_too_short_to_share(tmp_path):
    with pytest.raises(DataError, match="holds 1 characters: too few to keep some for validation"):
        lines(tmp_path, ["x"], document="file")


def test_half_a_character_is_named(tmp_path):
    (tmp_path / "t.jsonl").write_text(json.dumps({"text": "a\ud83d"}) + '\n{"text": "b"}\n')
    with pytest.raises(
        DataError, match=r"t.jsonl:1 holds half a character, .* a surrogate without its other"
    ):
        list(split_chunks(source("table", path=str(tmp_path / "t.jsonl")), 0.5))


def test_texts_that_are_all_alike(tmp_path):
    (tmp_path / "t.txt").write_text("same\n" * 9)
    found = source("text", path=str(tmp_path / "t.txt"), document="line")
    with pytest.raises(DataError, match="no text falls to train .*; lower it, or give texts that differ"):
        corpus(tmp_path, found)


def test_pairs_of_one_source_stay_together(tmp_path):
    rows = [{"source": f"s{i % 50}", "target": f"t{i}"} for i in range(400)]
    (tmp_path / "t.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = list(split_chunks(source("pairs", path=str(tmp_path / "t.jsonl")), 0.3))
    sides = {part: {item.texts[0] for item in found if item.part == part} for part in (TRAIN, VALIDATION)}
    assert len(found) == 400 and all(sides.values()) and not sides[TRAIN] & sides[VALIDATION]
