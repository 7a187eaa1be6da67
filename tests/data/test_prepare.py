"""What is prepared is what was written, is never stale, never half there; and costs little memory."""

import json
import os
import subprocess
import sys
import tracemalloc

import numpy as np
import pytest

from configs.errors import DataError
from data import prepare as preparation
from data import readers as documents
from data import store
from data.files import stdlib_files
from tests.data.corpora import corpus, source, text_corpus
from tests.parts import ROOT

TEXT = "A line of text with 12 numbers, naïve words\n\n  and white space.\n" * 60


def test_tokens_are_those_of_the_text(tmp_path):
    for i in range(40):
        (tmp_path / f"{i:02}.txt").write_text(f"document {i:02}")
    made = corpus(tmp_path, source("text", path=str(tmp_path / "*.txt")), validation=0.3)
    end = made.tokenizer.specials["end"]
    texts = []
    for part in (made.train, made.validation):
        ids = part.tokens.tolist()
        assert ids[-1] == end and ids.count(end) == part.n_items
        ends = [i for i, token in enumerate(ids) if token == end]
        found = [made.tokenizer.decode(ids[a + 1 : b]) for a, b in zip([-1, *ends[:-1]], ends, strict=True)]
        assert found == sorted(found), "in the order of the source"
        assert part.n_bytes == sum(map(len, found)) and part.n_tokens == len(ids)
        texts += found
    assert sorted(texts) == sorted(f"document {i:02}" for i in range(40))


def test_pairs_are_those_of_the_source(tmp_path):
    found = source("synthetic", size=500)
    made = corpus(tmp_path, found, validation=0.2)
    numbers = [np.arange(2 * part.n_items) for part in (made.train, made.validation)]
    texts = [t for p, n in zip((made.train, made.validation), numbers, strict=True) for t in p.texts(n)]
    shown = [made.tokenizer.decode(text.tolist()) for text in texts]
    assert sorted(zip(shown[::2], shown[1::2], strict=True)) == sorted(
        (p.source, p.target) for p in found.pairs()
    )
    assert made.train.lengths().sum() == made.train.n_tokens


@pytest.mark.parametrize("words", ["bpe", "char"])
def test_a_long_document_is_encoded_as_if_at_once(tmp_path, monkeypatch, words):
    text = "".join(path.read_text("utf-8") for path in stdlib_files()[::60])[:300_000]
    monkeypatch.setattr(documents, "PIECE", 5000)
    monkeypatch.setattr(preparation, "JOB", 9000)
    made = text_corpus(tmp_path, text, words=words)
    ids = [token for part in (made.train, made.validation) for token in part.tokens.tolist()]
    cut = int(len(text) * 0.95)
    assert ids == [*made.tokenizer.encode(text[:cut]).tolist(), *made.tokenizer.encode(text[cut:]).tolist()]


def test_shakespeare_is_cut_where_others_cut_it():
    n = 1_115_394
    assert n - int(n * (1 - 0.1)) == 111_540


@pytest.mark.parametrize(("n_characters", "dtype"), [(1000, "uint16"), (70_000, "uint32")])
def test_tokens_are_as_wide_as_the_vocabulary_needs(tmp_path, n_characters, dtype):
    text = "".join(map(chr, range(0x10000, 0x10000 + n_characters)))
    made = text_corpus(tmp_path, text, words="char")
    assert made.train.tokens.dtype == dtype
    assert made.tokenizer.decode(made.train.tokens[-5:].tolist()) == text[: int(n_characters * 0.95)][-5:]


def test_what_is_prepared_is_opened(tmp_path):
    told = []
    first = text_corpus(tmp_path, TEXT, report=lambda done, total: told.append((done, total)))
    assert told[-1] == (len(TEXT.encode()), len(TEXT.encode()))
    told.clear()
    again = text_corpus(tmp_path, TEXT, report=lambda *said: told.append(said))
    assert not told and again.folder == first.folder
    assert np.array_equal(again.train.tokens, first.train.tokens)
    assert again.tokenizer.state() == first.tokenizer.state()


def test_whatever_changes_is_made_anew(tmp_path, monkeypatch):
    path = tmp_path / "text.txt"
    path.write_text(TEXT)

    def folder(changes=None, **options):
        return corpus(tmp_path, source("text", path=str(path), **changes or {}), **options).folder

    folders = [
        folder(),
        folder({"document": "line"}),
        folder(validation=0.2),
        folder(words="char"),
        folder(specials=("end",)),
    ]
    stat = path.stat()
    path.write_text(TEXT.replace("12", "13"))
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))  # same size, same time
    folders.append(folder())
    monkeypatch.setattr(preparation, "FORMAT", 99)
    folders.append(folder())
    assert len(set(folders)) == len(folders)


def test_large_files_are_read_again_only_when_they_may_have_changed(tmp_path, monkeypatch):
    from data import files as fingerprint

    monkeypatch.setattr(fingerprint, "LARGE", 10)
    path, notes = tmp_path / "t.txt", tmp_path / "notes.json"
    path.write_text("a" * 20)
    os.utime(path, (1, 1))
    fresh = fingerprint.HashCache(notes).of(path)
    assert not notes.exists(), "a file just written may change again within the same tick"
    monkeypatch.setattr(fingerprint, "SETTLED", -1)
    assert fingerprint.HashCache(notes).of(path) == fresh and notes.exists()
    monkeypatch.setattr(fingerprint, "digest", lambda path: "read again")
    assert fingerprint.HashCache(notes).of(path) == fresh
    path.write_text("b" * 20)
    os.utime(path, (1, 1))
    assert fingerprint.HashCache(notes).of(path) == "read again"


@pytest.mark.parametrize("broken", ["train.tokens", "validation.tokens", "index.json", "tokenizer.json"])
def test_damage_is_named(tmp_path, broken):
    folder = text_corpus(tmp_path, TEXT).folder
    whole = (folder / broken).read_bytes()
    (folder / broken).write_bytes(whole[:-1])
    with pytest.raises(DataError, match=f"{broken} .*; remove .* and run again, it is made anew"):
        text_corpus(tmp_path, TEXT)
    (folder / broken).unlink()
    with pytest.raises(DataError, match=f"{broken} .*; remove"):
        text_corpus(tmp_path, TEXT)
    if broken.endswith("tokens"):
        (folder / broken).write_bytes(bytes([whole[0] ^ 1]) + whole[1:])
        with pytest.raises(DataError, match="tokens is not what was written; remove"):
            text_corpus(tmp_path, TEXT)
    (folder / broken).write_bytes(whole)
    assert text_corpus(tmp_path, TEXT).train.n_tokens > 0


@pytest.mark.parametrize("content", ["{}", "[]", "null", '{"parts": {}}', '{"parts": {"train": 1}}'])
def test_an_index_that_is_none(tmp_path, content):
    folder = text_corpus(tmp_path, TEXT).folder
    (folder / "index.json").write_text(content)
    with pytest.raises(DataError, match="index.json is no index; remove"):
        text_corpus(tmp_path, TEXT)


def test_another_tokenizer_is_not_taken_for_ours(tmp_path):
    folder = text_corpus(tmp_path, TEXT, words="char").folder
    state = json.loads((folder / "tokenizer.json").read_text())
    state["specials"] = {name: i + 1 for name, i in state["specials"].items()}
    (folder / "tokenizer.json").write_text(json.dumps(state))
    with pytest.raises(DataError, match="tokenizer.json is not what was written"):
        text_corpus(tmp_path, TEXT, words="char")


def test_text_that_changes_meanwhile_is_not_kept(tmp_path):
    def change(done, total):
        with open(tmp_path / "text.txt", "a") as file:
            file.write("more")

    with pytest.raises(DataError, match="the text changed while it was read; run again"):
        text_corpus(tmp_path, TEXT, report=change)
    assert not [path for path in (tmp_path / "cache").iterdir() if path.is_dir()]


@pytest.mark.parametrize("share", [0, 1, -0.1, 1.5, float("nan"), None, "0.1", [1], True])
def test_a_share_that_is_none(tmp_path, share):
    with pytest.raises(ValueError, match="data.val_fraction is .*; expected a share between 0 and 1"):
        text_corpus(tmp_path, TEXT, validation=share)


def test_a_split_without_validation(tmp_path):
    rows = "\n".join(f"line {i}" for i in range(600))
    (tmp_path / "t.txt").write_text(rows)
    with pytest.raises(
        DataError, match="no text falls to validation where data.val_fraction is 1e-06; raise it"
    ):
        corpus(tmp_path, source("text", path=str(tmp_path / "t.txt"), document="line"), validation=1e-6)


def test_a_dataset_ends_early(tmp_path):
    rows = [{"text": f"row {i} " * 20} for i in range(4000)]
    (tmp_path / "set").mkdir()
    (tmp_path / "set/train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    part = {"id": str(tmp_path / "set"), "streaming": True}
    some = corpus(tmp_path, source("hub", max_tokens=100_001, **part)).train
    every = corpus(tmp_path, source("hub", **part)).train
    assert some.n_tokens == 100_001 < every.n_tokens
    assert np.array_equal(some.tokens, every.tokens[:100_001])
    with pytest.raises(ValueError, match="max_tokens must be at least 1 and is 0"):
        source("hub", max_tokens=0, **part)


def test_characters_are_sought_no_farther_than_tokens(tmp_path, monkeypatch):
    monkeypatch.setattr(preparation, "JOB", 100)
    monkeypatch.setattr(preparation, "PIECE", 100)
    rows = [{"text": chr(0x4E00 + i % 2000) * 50} for i in range(400)]
    (tmp_path / "set").mkdir()
    (tmp_path / "set/train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = source("hub", id=str(tmp_path / "set"), max_tokens=2000)
    made = corpus(tmp_path, found, words="char")
    assert made.train.n_tokens == 2000 and len(made.tokenizer.characters) < 70


def test_our_own_cache_is_no_text(tmp_path):
    """Else it would change the text it is made of."""
    for _ in range(2):
        (tmp_path / "a.txt").write_text(TEXT)
        made = corpus(tmp_path, source("text", path=str(tmp_path), cache=tmp_path / "cache"))
    assert made.train.n_bytes + made.validation.n_bytes == len(TEXT.encode())


def test_a_dataset_that_was_replaced_is_read_anew(tmp_path):
    path = tmp_path / "set/train.jsonl"
    path.parent.mkdir()
    for word in ("AAAA", "BBBB"):
        path.write_text("".join(f'{{"text": "{word} {i}"}}\n' for i in range(50)))
        os.utime(path, (1, 1))
        made = corpus(tmp_path, source("hub", id=str(path.parent)))
        assert word in made.tokenizer.decode(made.train.tokens[:20].tolist())


def test_what_files_are_called_decides_how_they_are_read(tmp_path):
    found, folders = source("table", path=str(tmp_path / "set")), []
    for old, new in ((None, "a.csv"), ("a.csv", "a.tsv")):
        (tmp_path / "set").mkdir(exist_ok=True)
        if old:
            (tmp_path / "set" / old).rename(tmp_path / "set" / new)
        else:
            (tmp_path / "set" / new).write_text('text\n"one"\n"two"\n"three"\n')
        folders.append(corpus(tmp_path, found).folder)
    assert folders[0] != folders[1]


def test_a_file_in_the_way_of_the_cache(tmp_path):
    (tmp_path / "cache").write_text("")
    with pytest.raises(DataError, match="cannot use .*cache: file exists"):
        text_corpus(tmp_path, TEXT)


@pytest.mark.parametrize("document", ["file", "line"])
def test_a_large_file_needs_little_memory(tmp_path, monkeypatch, document):
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    monkeypatch.setattr(documents, "PIECE", 1 << 16)
    monkeypatch.setattr(preparation, "JOB", 1 << 13)
    path = tmp_path / "large.txt"
    path.write_text("".join(f"{i} lines of a large file, each a little longer\n" for i in range(60_000)))
    found = source("text", path=str(path), document=document)
    tracemalloc.start()
    made = corpus(tmp_path, found)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert made.train.n_bytes + made.validation.n_bytes > 2.5e6
    assert peak < 1.5e6


def in_a_process_of_its_own(code, folder):
    done = subprocess.run(
        [sys.executable, "-c", PREAMBLE + code, str(folder)], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0 and not done.stderr, done.stderr
    return done.stdout


PREAMBLE = """
import os, resource, signal, sys
from pathlib import Path
from data import prepare as preparation
from data import store
from configs.errors import DataError
from tests.data.corpora import corpus, source
folder = Path(sys.argv[1])
path = folder / "text.txt"
path.write_text("".join(f"line {i}\\n" for i in range(15_000)))
preparation.JOB = 30_000

def made(cache):
    (folder / cache).mkdir(exist_ok=True)
    return corpus(folder / cache, source("text", path=str(path), document="line"), validation=0.4)

def held(cache):
    return sorted(p.name for p in (folder / cache / "cache").glob("text-*") if p.suffix != ".lock")
"""


def test_a_killed_build_leaves_nothing_to_read(tmp_path):
    """Killed before each write, each sync and the rename; what is left behind is swept by the next one."""
    code = """
import hashlib
def decode_bytes(corpus):
    return {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in corpus.folder.iterdir()}
whole, kills = bytes_of(made("reference")), 0
for k in range(1000):
    pid = os.fork()
    if not pid:
        left = k
        def deadly(call):
            def wrapped(*words):
                global left
                if left == 0:
                    os.kill(os.getpid(), signal.SIGKILL)
                left -= 1
                return call(*words)
            return wrapped
        store.PartWriter.append = deadly(store.PartWriter.append)
        os.fsync, os.rename = deadly(os.fsync), deadly(os.rename)
        made("killed")
        os._exit(0)
    _, status = os.waitpid(pid, 0)
    if status == 0:
        break
    assert os.WTERMSIG(status) == signal.SIGKILL
    for name in held("killed"):
        assert name.endswith(".draft") or bytes_of(made("killed")) == whole, name
    kills += 1
print(kills, bytes_of(made("killed")) == whole, len(held("killed")))
"""
    kills, same, folders = in_a_process_of_its_own(code, tmp_path).split()
    assert int(kills) > 10 and same == "True" and folders == "1"


def test_of_two_builds_at_once_one_waits(tmp_path):
    code = """
ready, go = os.pipe(), os.pipe()
def child(work):
    pid = os.fork()
    if not pid:
        work()
        os._exit(0)
    return pid
def build():
    def report(done, total):
        os.write(ready[1], b"b")
        os.read(go[0], 1)
    corpus(folder / "two", source("text", path=str(path), document="line"), report=report, validation=0.4)
def wait():
    def report(done, total):
        os._exit(9)  # would build a second time
    os.write(ready[1], b"w")
    corpus(folder / "two", source("text", path=str(path), document="line"), report=report, validation=0.4)
(folder / "two").mkdir()
preparation.JOB = 1 << 30
first = child(build)
assert os.read(ready[0], 1) == b"b"
second = child(wait)
assert os.read(ready[0], 1) == b"w"
os.write(go[1], b"g")
print([os.waitpid(pid, 0)[1] for pid in (first, second)], len(held("two")))
"""
    assert in_a_process_of_its_own(code, tmp_path).strip() == "[0, 0] 1"


def test_a_full_disk_leaves_nothing_behind(tmp_path):
    code = """
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
(folder / "full").mkdir()
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
try:
    made("full")
except DataError as error:
    print(error)
print(held("full"))
"""
    said, left = in_a_process_of_its_own(code, tmp_path).strip().split("\n")
    assert (
        said
        == "cannot write: file too large; free some space, or put the tokens elsewhere with data.cache=FOLDER"
    )
    assert left == "[]"


def test_the_index_tells_the_format(tmp_path):
    index = json.loads((text_corpus(tmp_path, TEXT).folder / "index.json").read_text())
    assert index["format"] == store.FORMAT and set(index["parts"]) == {"train", "validation"}


def test_entropy_of_single_tokens():
    assert store.unigram_entropy(np.repeat(np.arange(8), 5)) == pytest.approx(np.log(8))
    assert store.unigram_entropy(np.zeros(9, np.uint8)) == 0
