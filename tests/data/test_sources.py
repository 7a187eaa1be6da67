"""Sources yield their text or pairs in order and unchanged; an error says what cannot be read, and
where."""

import os
from pathlib import Path

import pandas
import pyarrow
import pytest

from configs.compose import compose
from configs.errors import DataError
from data.corpus import load_data
from data.readers import read_lines, rechunk, stdlib_files
from data.store import TRAIN, VALIDATION
from tests.data.corpora import chunks_of, source
from tests.parts import refused


def read(found):
    return ["".join(document.chunks()) for document in found.documents()]


def pairs(found):
    return [tuple(document.texts) for document in found.documents()]


def text(path, **changes):
    return source("text", path=path, **changes)


def table(path, **changes):
    return source("table", path=path, **changes)


def test_the_standard_library():
    files = stdlib_files()
    assert files == sorted(files, key=Path.as_posix) and len(files) > 300
    folders = {folder for path in files for folder in path.parts[-3:]}
    assert not {"test", "idlelib", "site-packages"} & folders
    found = source("python")
    n_bytes = sum(len(text.encode()) for text in read(found))
    assert sum(size for _, size, _ in found.version()) == n_bytes > 5e6


def test_a_file_a_folder_a_glob():
    for name in ("b.txt", "a/c.txt", "a/d.md", ".hidden/e.txt", "a/.f.txt"):
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).write_text(name)
    assert read(text("b.txt")) == ["b.txt"]
    assert read(text(".")) == ["a/c.txt", "a/d.md", "b.txt"]
    assert read(text("**/*.txt")) == ["a/c.txt", "b.txt"]
    hidden = ".hidden/e.txt"
    assert read(text(hidden)) == [hidden], "hidden files only by name"


@pytest.mark.parametrize("name", ["b.jsonl", "b.jsonl.gz", "a/b.CSV", "b.tsv.zst", "b.parquet"])
@pytest.mark.parametrize("path", [".", "**/*", None])
def test_tables_are_no_text(name, path):
    """A folder may hold some; they would be trained on with all their braces and commas."""
    Path("a").mkdir()
    Path("a/c.json").write_text("{}")
    Path(name).write_bytes(b"")
    with refused(f"has tables .1., such as {name}; data=table reads one of", DataError):
        read(text(path or name))
    Path(name).unlink()
    assert read(text(".")) == ["{}"], "settings of programs are text"


def test_lines():
    Path("t.txt").write_bytes(b"one\r\ntwo\n\n  \nfive")
    lines = text("t.txt", split_on="line")
    assert read(lines) == ["one", "two", "", "  ", "five"]
    *_, last = lines.documents()
    assert last.name == "t.txt:5"


def test_text_is_unchanged(monkeypatch):
    path = Path("t.txt")
    path.write_bytes("\ufeffa\r\nb\r\n\ufeff\tc".encode())
    assert read(text("t.txt")) == ["a\r\nb\r\n\ufeff\tc"], "except a byte order mark in front"
    content = "aé東🙂\n" * 40
    for size in (1, 2, 3, 7):  # a chunk may end within a character
        monkeypatch.setattr("data.readers.CHUNK_CHARS", size)
        path.write_bytes("\ufeff\ufeffa\ufeff".encode())
        assert read(text("t.txt")) == ["\ufeffa\ufeff"]
        path.write_text(content)
        assert read(text("t.txt")) == [content]
        assert list(read_lines(path)) == ["aé東🙂"] * 40


def test_chunks_are_short_also_without_a_token_boundary(monkeypatch):
    """(That they end at one, and keep the text, is in test_prepare.py.)"""
    monkeypatch.setattr("data.readers.CHUNK_CHARS", 50)
    pieces = rechunk(["x" * 490 + " y"])
    assert list(map(len, pieces)) == [100, 100, 100, 100, 92]


def test_half_a_character_at_the_end_is_not_text():
    Path("t.txt").write_bytes("é".encode() * 600_000 + b"\xe6\x9d")
    with refused(r"t.txt is not UTF-8 \(unexpected end of data\); set data.encoding", DataError):
        read(text("t.txt"))


TEXTS = ["one", "007", "NA", 'a "quoted", line\nand another', "東京"]
ROWS = [{"text": text} for text in TEXTS]


def write_table(name, rows):
    kind = Path(name).suffix
    frame = pandas.DataFrame(rows)
    if ".json" in kind:
        frame.to_json(name, orient="records", lines=kind == ".jsonl")
    elif kind == ".parquet":
        frame.to_parquet(name)
    else:
        frame.to_csv(name, index=False, sep="\t" if kind == ".tsv" else ",")


@pytest.mark.parametrize("kind", ["jsonl", "json", "csv", "tsv", "parquet"])
def test_tables_of_all_formats(kind):
    rows = ROWS[:3] if kind == "tsv" else ROWS  # which has no quotes
    write_table(f"rows.{kind}", rows)
    assert read(table(f"rows.{kind}")) == TEXTS[: len(rows)]


@pytest.mark.parametrize("ending, codec", [("gz", "gzip"), ("zst", "zstd")])
def test_compressed_files_read_as_plain_ones(ending, codec):
    def compress(name):
        whole = pyarrow.compress(Path(name).read_bytes(), codec, asbytes=True)
        Path(f"{name}.{ending}").write_bytes(whole)
        return f"{name}.{ending}"

    for name in ("rows.jsonl", "rows.json", "rows.csv"):
        write_table(name, ROWS)
        assert read(table(compress(name))) == TEXTS
    long = "aé東🙂\n" * 99_999
    Path("t.txt").write_text(long)
    place = compress("t.txt")
    assert read(text(place)) == [long]
    assert len(read(text(place, split_on="line"))) == 99_999
    whole = Path(place).read_bytes()
    Path(place).write_bytes(whole[:-9])
    with refused(f"cannot read {place}: Truncated", DataError):
        read(text(place))
    *_, rest = text(place, split_on="line").documents()
    with refused(f"cannot read {place}: Truncated", DataError):
        rest.chunks()


def test_a_list_of_files_and_files_for_validation(tmp_path):
    for name in "abcd":
        Path(f"{name}.txt").write_text(name)
    assert read(text(["c.txt", "[ab].txt", "a.txt"])) == ["c", "a", "b"]

    def splits(path, val_path):
        found = text(path, val_path=val_path)
        return [(chunk.split, *chunk.texts) for chunk in chunks_of(found)]

    other = [f"../{tmp_path.name}/b.txt", "d.txt"]
    train = [(TRAIN, "a"), (TRAIN, "c")]
    assert splits(".", other) == [*train, (VALIDATION, "b"), (VALIDATION, "d")]
    assert splits("a.txt", "a.txt") == [(TRAIN, "a"), (VALIDATION, "a")], "to evaluate on it"
    found = text("a.txt", val_path=other)
    before = found.version()
    os.utime("d.txt", (1, 1))
    assert found.version() != before


@pytest.mark.parametrize("encoding", ["latin-1", "utf-16", "cp1252"])
def test_other_encodings(encoding):
    Path("t.txt").write_text("café\nÿ", encoding)
    assert read(text("t.txt", encoding=encoding)) == ["café\nÿ"]
    Path("t.csv").write_text('text,b\n"café\nÿ",x\n', encoding)
    assert read(table("t.csv", encoding=encoding)) == ["café\nÿ"]


@pytest.mark.parametrize("name", ["t.jsonl", "t.parquet"])
def test_nested_fields(name):
    Path("set").mkdir()
    path = f"set/{name}"
    row = {"doc": {"body": "deep", "more": {"x": "deeper"}}, "doc.title": "flat"}
    write_table(path, [row])
    assert read(table(path, field="doc.title")) == ["flat"]
    found = source("pairs", path=path, source="doc.body", target="doc.more.x")
    assert pairs(found) == [("deep", "deeper")]
    with refused("has None as 'doc.boddy', not text; its fields are: doc", DataError):
        read(table(path, field="doc.boddy"))
    assert read(source("hub", id="set", field="doc.body")) == ["deep"]


@pytest.mark.parametrize(
    "name, content, sentence",
    [
        ("a.jsonl", '{"text": "a"}\n\n["b"]\n', "a.jsonl:3: expected an object"),
        ("a.jsonl", '{"text": "a"}\n{"body": 5}\n', "2 has None as 'text', not text; .* are: body"),
        ("a.jsonl", '{"text": 5}\n', "a.jsonl:1 has 5 as 'text', not text"),
        ("a.jsonl", '{"messages": []}\n', "conversations are read by data=chat; its fields are"),
        ("a.json", '[{"text": "a"}, {}]', "a.json, row 2 has None as 'text'"),
        ("a.jsonl", '[{"text": "a"}, {}]', "a.jsonl, row 2 has None as 'text'"),
        ("a.csv", "text,b\nright,wrong,x\n", "a.csv:2: there are more values than names"),
        # it would swallow all rows after it
        ("a.csv", 'text,b\n"a,y\nb,y\n', "a.csv:3: unexpected end of data"),
        ("a.csv", "text,text\na,b\n", "a.csv: two columns have the same name"),
        ("a.txt", "x", "a.txt is not a table; expected a name that ends in .jsonl"),
        ("a.parquet", "x", "cannot read .*a.parquet: "),
    ],
)
def test_what_cannot_be_read_is_located(name, content, sentence):
    Path(name).write_text(content)
    with refused(sentence, DataError):
        read(table("."))


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_csv_values_are_unchanged(end):
    long = "x" * 200_000  # longer than the csv module allows by default
    lines = ["\ufefftext,b", '"a\r\nb",y', "", " c ,y", f"{long},y", "d\u2028,y", "short"]
    Path("t.csv").write_bytes(end.join(lines).encode())
    assert read(table("t.csv")) == ["a\r\nb", " c ", long, "d\u2028", "short"]
    assert read(table("t.csv", field="b")) == ["y", "y", "y", "y", ""]


@pytest.mark.parametrize("streaming", [False, True])
def test_a_dataset_in_a_folder(streaming, monkeypatch, tmp_path):
    import datasets

    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    Path("set").mkdir()
    write_table("set/train.parquet", ROWS)
    found = source("hub", id="set", streaming=streaming)
    assert read(found) == TEXTS
    [(name, _, _)] = found.version()
    assert name == str(tmp_path / "set/train.parquet")
    with refused("cannot read .*split", DataError):
        read(source("hub", id="set", streaming=streaming, split="middle"))
    datasets.Dataset.from_list(ROWS).save_to_disk("saved")
    with refused("cannot read .*saved using `save_to_disk`", DataError):
        read(source("hub", id="saved", streaming=streaming))


def test_the_hub_offline():
    found = source("tinystories", cache=".")
    sentence = "cannot get roneneldan/TinyStories from the Hugging Face Hub .*data.id=FOLDER"
    with refused(sentence, DataError):
        found.version()
    Path("roneneldan--TinyStories@None.commit").write_text("abc123")
    assert found.version() == [("abc123", 0, 0)], "the last that is known"


def test_shakespeare_offline(monkeypatch):
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:9")
    with refused("cannot download https://.*; put a copy .*: .*refused", DataError):
        load_data(compose(["data=shakespeare", "data.cache=new"]))
    Path("new/tinyshakespeare.txt").write_text("To be")
    assert read(source("shakespeare", cache="new")) == ["To be"]


def test_tsv_has_no_quotes():
    Path("t.tsv").write_text('source\ttarget\n"Hi\tA\nx\tB\ny"\tC "D", E\n')
    expected = [('"Hi', "A"), ("x", "B"), ('y"', 'C "D", E')]
    assert pairs(source("pairs", path="t.tsv")) == expected


def test_synthetic_targets_are_right():
    found = pairs(source("synthetic", size=2500, min_length=3, max_length=6))
    assert len(set(found)) > 2000
    for text, target in found:
        assert target == text[::-1]
    assert {len(text) for text, _ in found} == {3, 4, 5, 6}
    with refused("max_length is 1; it must be at least min_length, 2"):
        source("synthetic", min_length=2, max_length=1)
