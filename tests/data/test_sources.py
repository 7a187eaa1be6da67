"""Sources yield their text in order and unchanged; an error says what cannot be read, and where."""

import json
import os
from itertools import pairwise

import pandas
import pyarrow
import pytest

from configs.errors import DataError
from data import readers
from data.prepare import split_chunks
from data.readers import read_lines, rechunk, stdlib_files
from data.store import TRAIN, VALIDATION
from tests.data.corpora import source


def read(found):
    return ["".join(document.chunks()) for document in found.documents()]


def text(path, **changes):
    return source("text", path=str(path), **changes)


def table(path, **changes):
    return source("table", path=str(path), **changes)


def test_the_standard_library():
    files = stdlib_files()
    assert files == sorted(files, key=lambda path: path.as_posix()) and len(files) > 300
    assert not {"test", "idlelib", "site-packages"} & {part for f in files for part in f.parts[-3:]}
    found = source("python")
    n_bytes = sum(len(text.encode()) for text in read(found))
    assert sum(size for _, size, _ in found.version()) == n_bytes > 5e6


def test_a_file_a_folder_a_glob(tmp_path):
    for name in ("b.txt", "a/c.txt", "a/d.md", ".hidden/e.txt", "a/.f.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    assert read(text(tmp_path / "b.txt")) == ["b.txt"]
    assert read(text(tmp_path)) == ["a/c.txt", "a/d.md", "b.txt"]
    assert read(text(tmp_path / "**/*.txt")) == ["a/c.txt", "b.txt"]
    hidden = ".hidden/e.txt"
    assert read(text(tmp_path / hidden)) == [hidden], "hidden files only by name"


def test_lines(tmp_path):
    path = tmp_path / "t.txt"
    path.write_bytes(b"one\r\ntwo\n\n  \nfive")
    lines = text(path, split_on="line")
    assert read(lines) == ["one", "two", "", "  ", "five"]
    assert [document.name for document in lines.documents()][-1] == f"{path}:5"
    with pytest.raises(ValueError, match="split_on is 'word'; expected file or line"):
        text(path, split_on="word")


def test_text_is_unchanged(tmp_path, monkeypatch):
    path = tmp_path / "t.txt"
    path.write_bytes("\ufeffa\r\nb\r\n\ufeff\tc".encode())
    assert read(text(path)) == ["a\r\nb\r\n\ufeff\tc"], "except a byte order mark at the beginning"
    monkeypatch.setattr(readers, "CHUNK_CHARS", 3)
    path.write_bytes("\ufeff\ufeffa\ufeff".encode())
    assert read(text(path)) == ["\ufeffa\ufeff"]


def test_a_chunk_may_end_within_a_character(tmp_path, monkeypatch):
    path, content = tmp_path / "t.txt", "aé東🙂\n" * 40
    path.write_text(content, encoding="utf-8")
    for size in (1, 2, 3, 7):
        monkeypatch.setattr(readers, "CHUNK_CHARS", size)
        assert read(text(path)) == [content]
        assert list(read_lines(path)) == ["aé東🙂"] * 40


def test_rechunk_keeps_the_text_and_cuts_at_token_boundaries(monkeypatch):
    monkeypatch.setattr(readers, "CHUNK_CHARS", 50)
    content = "one two, three\n  four five-six don't 3.14\n\n" * 30
    pieces = list(rechunk(iter([content[:333], content[333:700], content[700:]])))
    assert "".join(pieces) == content and len(pieces) > 10
    assert max(map(len, pieces)) <= 100
    for before, after in pairwise(pieces):
        assert before[-1].isalnum() and after[0].isspace()
    assert [len(piece) for piece in rechunk(iter(["x" * 490]))] == [100] * 4 + [90], (
        "without a boundary"
    )


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"good\xffbad", r"t\.txt is not UTF-8 \(invalid start byte\); set data.encoding"),
        ("é".encode() * 600_000 + b"\xe6\x9d", r"not UTF-8 \(unexpected end of data\)"),
    ],
)
def test_not_text(tmp_path, content, sentence):
    (tmp_path / "t.txt").write_bytes(content)
    with pytest.raises(DataError, match=sentence):
        read(text(tmp_path / "t.txt"))


def test_the_version_changes_with_names_sizes_and_times(tmp_path):
    path = tmp_path / "a.txt"
    changes = [
        lambda: path.write_text("one"),
        lambda: path.write_text("one more"),
        lambda: os.utime(path, (1, 1)),
        lambda: path.rename(tmp_path / "b.txt"),
        lambda: path.write_text(""),
    ]
    versions = set()
    for change in changes:
        change()
        versions.add(str(text(tmp_path).version()))
    assert len(versions) == len(changes)


TEXTS = ["one", "007", "NA", 'a "quoted", line\nand another', "東京"]
ROWS = [{"text": text} for text in TEXTS]


def write_table(path, rows):
    if path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    elif path.suffix == ".json":
        path.write_text(json.dumps(rows))
    elif path.suffix == ".parquet":
        pandas.DataFrame(rows).to_parquet(path)
    else:
        pandas.DataFrame(rows).to_csv(path, index=False, sep="\t" if path.suffix == ".tsv" else ",")
    return path


def compress(path, packed):
    codec = {"gz": "gzip", "zst": "zstd"}[packed]
    whole = pyarrow.compress(path.read_bytes(), codec, asbytes=True)
    place = path.with_name(f"{path.name}.{packed}")
    place.write_bytes(whole)
    path.unlink()
    return place


@pytest.mark.parametrize("kind", ["jsonl", "json", "csv", "tsv", "parquet"])
def test_tables_of_all_formats(tmp_path, kind):
    rows = ROWS[:3] if kind == "tsv" else ROWS  # which has no quotes
    path = write_table(tmp_path / f"rows.{kind}", rows)
    assert read(table(path)) == TEXTS[: len(rows)]


@pytest.mark.parametrize("packed", ["gz", "zst"])
def test_compressed_files_read_as_plain_ones(tmp_path, packed):
    for name in ("rows.jsonl", "rows.json", "rows.csv"):
        path = compress(write_table(tmp_path / name, ROWS), packed)
        assert read(table(path)) == TEXTS
    long = "aé東🙂\n" * 99_999
    (tmp_path / "t.txt").write_text(long)
    place = compress(tmp_path / "t.txt", packed)
    assert read(text(place)) == [long] and len(read(text(place, split_on="line"))) == 99_999
    place.write_bytes(place.read_bytes()[:-9])
    with pytest.raises(DataError, match=f"cannot read .*t.txt.{packed}: Truncated"):
        read(text(place))


def test_a_list_of_files_and_files_for_validation(tmp_path):
    for name in "abcd":
        (tmp_path / f"{name}.txt").write_text(name)
    paths = [str(tmp_path / name) for name in ("c.txt", "[ab].txt", "a.txt")]
    assert read(source("text", path=paths)) == ["c", "a", "b"]

    def splits(path, val_path):
        found = source("text", path=str(path), val_path=val_path)
        return [(chunk.split, chunk.texts[0]) for chunk in split_chunks(found, [])]

    other = [f"{tmp_path}/../{tmp_path.name}/b.txt", str(tmp_path / "d.txt")]
    train = [(TRAIN, "a"), (TRAIN, "c")]
    assert splits(tmp_path, other) == [*train, (VALIDATION, "b"), (VALIDATION, "d")]
    both = [(TRAIN, "a"), (VALIDATION, "a")]
    assert splits(paths[2], paths[2]) == both, "to evaluate on it"
    found = text(paths[2], val_path=other)
    before = found.version()
    os.utime(tmp_path / "d.txt", (1, 1))
    assert found.version() != before


@pytest.mark.parametrize("encoding", ["latin-1", "utf-16", "cp1252"])
def test_other_encodings(tmp_path, encoding):
    (tmp_path / "t.txt").write_text("café\nÿ", encoding)
    assert read(text(tmp_path / "t.txt", encoding=encoding)) == ["café\nÿ"]
    (tmp_path / "t.csv").write_text('text,b\n"café\nÿ",x\n', encoding)
    assert read(table(tmp_path / "t.csv", encoding=encoding)) == ["café\nÿ"]


@pytest.mark.parametrize("name", ["t.jsonl", "t.json", "t.parquet"])
def test_nested_fields(tmp_path, name):
    (tmp_path / "set").mkdir()
    row = {"doc": {"body": "deep", "more": {"x": "deeper"}}, "doc.title": "flat"}
    path = write_table(tmp_path / "set" / name, [row])
    for field, expected in (("doc.body", "deep"), ("doc.more.x", "deeper"), ("doc.title", "flat")):
        assert read(table(path, field=field)) == [expected]
        pairs = source("pairs", path=str(path), source=field, target="doc.body")
        assert read(pairs) == [f"{expected}deep"]
    with pytest.raises(DataError, match="has None as 'doc.boddy', not text; its fields are: doc"):
        read(table(path, field="doc.boddy"))
    assert read(source("hub", id=str(path.parent), field="doc.body")) == ["deep"]


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("a.jsonl", '{"text": "a"}\n{"text": "b}\n', "a.jsonl:2: not JSON: "),
        ("a.jsonl", '{"text": "a"}\n\n["b"]\n', "a.jsonl:3: expected an object"),
        ("a.jsonl", '{"text": "a"}\n{"body": 5}\n', "2 has None as 'text', not text; .* are: body"),
        ("a.jsonl", '{"text": 5}\n', "a.jsonl:1 has 5 as 'text', not text"),
        ("a.jsonl", '{"messages": []}\n', "conversations are read by data=chat; its fields are"),
        ("a.json", '[{"text": "a"}, {}]', "a.json, row 2 has None as 'text'"),
        ("a.csv", "text,b\nright,wrong,x\n", "a.csv:2: there are more values than the header"),
        ("a.tsv", "text\tb\nright\twrong\tx\n", "a.tsv:2: there are more values than the"),
        # it would swallow all rows after it
        ("a.csv", 'text,b\n"a,y\nb,y\n', "a.csv:3: unexpected end of data"),
        ("a.txt", "x", "a.txt is not a table; expected a name that ends in .jsonl"),
        ("a.parquet", "x", "cannot read .*a.parquet: "),
    ],
)
def test_what_cannot_be_read_is_located(tmp_path, name, content, sentence):
    (tmp_path / name).write_text(content)
    with pytest.raises(DataError, match=sentence):
        read(table(tmp_path))


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_csv_values_are_unchanged(tmp_path, end):
    long = "x" * 200_000  # longer than the csv module allows by default
    lines = ["text,b", '"a\r\nb",y', "", " c ,y", f"{long},y", "d\u2028,y", "short"]
    (tmp_path / "t.csv").write_bytes("\ufeff".encode() + end.join(lines).encode())
    assert read(table(tmp_path)) == ["a\r\nb", " c ", long, "d\u2028", "short"]
    assert read(table(tmp_path, field="b")) == ["y"] * 4 + [""]


@pytest.mark.parametrize("streaming", [False, True])
def test_a_dataset_in_a_folder(tmp_path, streaming, monkeypatch):
    import datasets

    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    folder = tmp_path / "set"
    folder.mkdir()
    write_table(folder / "train.parquet", ROWS)
    options = {"id": str(folder), "streaming": streaming}
    found = source("hub", **options)
    assert read(found) == TEXTS
    assert [name for name, _, _ in found.version()] == [str(folder / "train.parquet")]
    with pytest.raises(DataError, match="cannot read .*split"):
        read(source("hub", **options, split="middle"))
    datasets.Dataset.from_list(ROWS).save_to_disk(tmp_path / "saved")
    with pytest.raises(DataError, match="cannot read .*saved using `save_to_disk`"):
        read(source("hub", **options | {"id": str(tmp_path / "saved")}))


def test_the_hub_offline(tmp_path):
    found = source("tinystories", cache=str(tmp_path))
    sentence = "cannot get roneneldan/TinyStories from the Hugging Face Hub .*data.id=FOLDER"
    with pytest.raises(DataError, match=sentence):
        found.version()
    (tmp_path / "roneneldan--TinyStories@None.commit").write_text("abc123")
    assert found.version() == [("abc123", 0, 0)], "the last that is known"


def test_shakespeare_offline(tmp_path, monkeypatch):
    for proxy in ("HTTPS_PROXY", "https_proxy"):
        monkeypatch.setenv(proxy, "http://127.0.0.1:9")
    found = source("shakespeare", cache=str(tmp_path))
    with pytest.raises(DataError, match="cannot download https://.*; put a copy of that file at"):
        found.files()

    (tmp_path / "tinyshakespeare.txt").write_text("To be")
    assert read(found) == ["To be"]
