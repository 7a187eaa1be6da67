"""`python -m data` previews the training data, and errors are one line."""

from functools import partial
from pathlib import Path

import pytest
from rich.filesize import decimal

from data.__main__ import main
from tests.data.corpora import write_rows

TEXT = "".join(f"line {i} of a text, don't {i * i} <|endoftext|>\n" for i in range(400))
PAIRS = [{"source": f"what is {i}", "target": f"{i} is a number"} for i in range(90)]


@pytest.fixture
def run(command):
    """run(*overrides): what the command prints where these files are: .out and .err"""
    Path("book.txt").write_text(TEXT)
    write_rows("pairs.jsonl", PAIRS)
    return partial(command, main, "size=tiny", "tokenizer=byte")


TEXTS = "data=text data.path=book.txt"
PAIR_TABLE = "data=pairs data.path=pairs.jsonl"
SEEN = {  # {overrides: what is printed}
    f"{TEXTS} data.document_mask=true": ["documents (16, 128), 2,048 targets"],
    f"{TEXTS} model=bert": ["<mask>"],
    f"{TEXTS} model=t5": ["source      ", "<sentinel_0>", "<start>", "<end>"],
    f"{PAIR_TABLE} model=gpt2": ["<start>", "targets     '", "is a number<end>'"],
    f"{PAIR_TABLE} model=bart": ["source      'what is", "tokens      '<start>"],
}


@pytest.mark.parametrize("overrides", SEEN)
def test_every_objective(run, overrides):
    out = run(*overrides.split()).out
    assert all(part in out for part in SEEN[overrides]), out


def test_the_data_of_a_run_is_not_shown(run):
    assert "give its data= instead of resume=" in run("name=a", "resume=true", code=2).err


def test_fields_may_have_any_name(run):
    write_rows("odd.jsonl", [{"0": str(i), "a(1)": "b"} for i in range(40)])
    found = run("data=pairs", "data.path=odd.jsonl", "data.source=0", "data.target=a(1)")
    assert "b<end>" in found.out


def test_a_large_text_is_announced(run, monkeypatch):
    """Training a tokenizer and encoding may take minutes."""
    monkeypatch.setattr("data.prepare.LARGE", len(TEXT))
    assert run(*TEXTS.split()).err == f"tokenizing {decimal(len(TEXT))} ...\n"
