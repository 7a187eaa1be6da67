"""`python -m data` previews the training data, and errors are one line."""

import re
from pathlib import Path

import pytest
from rich.filesize import decimal

from configs.cli import run_command
from data import prepare
from data.__main__ import main
from tests.data.corpora import write_rows

TEXT = "".join(f"line {i} of a text, don't {i * i} <|endoftext|>\n" for i in range(400))
PAIRS = [{"source": f"what is {i}", "target": f"{i} is a number"} for i in range(90)]


@pytest.fixture
def run(capsys):
    """run(*overrides): the exit code of the command where these files are, what it prints, and its
    errors"""
    Path("book.txt").write_text(TEXT)
    write_rows("pairs.jsonl", PAIRS)

    def run_main(*overrides):
        code = run_command(lambda: main(["size=tiny", "tokenizer=byte", *overrides]))
        return code, *capsys.readouterr()

    return run_main


TEXTS = ["data=text", "data.path=book.txt"]
PAIR_TABLE = ["data=pairs", "data.path=pairs.jsonl"]


def test_counts(run):
    _, out, _ = run(*TEXTS)
    cut = int(len(TEXT) * 0.95)
    for n in (cut, len(TEXT) - cut):
        assert f"{n:,}" in out
    assert "byte, vocab_size 257" in out and "1.00 bytes per token (train)" in out
    for name in ("next_token", "steps per epoch", "cached in", "sequences"):
        assert name in out


@pytest.mark.parametrize(
    ("overrides", "seen"),
    [
        (TEXTS, ["tokens      ", "targets     "]),
        ([*TEXTS, "data.document_mask=true"], ["documents (16, 128), 2,048 targets"]),
        (["data=synthetic", "data.size=300", "model.prefix_lm=true"], ["prefix (16,)", "<start>"]),
        ([*TEXTS, "model=bert"], ["<mask>"]),
        ([*TEXTS, "model=t5"], ["source      ", "<sentinel_0>", "<start>", "<end>"]),
        ([*PAIR_TABLE, "model=gpt2"], ["<start>", "targets     '", "is a number<end>'"]),
        (
            [*PAIR_TABLE, "model=bart"],
            ["source      'what is", "tokens      '<start>", "is a number<end>'"],
        ),
    ],
)
def test_every_objective(run, overrides, seen):
    _, out, _ = run(*overrides)
    assert all(part in out for part in seen), out


@pytest.mark.parametrize(
    ("overrides", "code", "message"),
    [
        (["data=text", "data.path="], 2, "data.path is empty"),
        ([*TEXTS, "data.kind=[a]"], 2, r"data.kind is \['a'\]; choose one of: python"),
        (
            [*TEXTS, "model=bert", "objective=next_token"],
            2,
            "a model whose kind is decoder; data=text gives text, and this model is of the kind encoder",
        ),
        (
            [*TEXTS, "objective=pairs"],
            2,
            "objective=pairs needs pairs and .*; data=text gives text, .*; for text, objective=auto",
        ),
        ([*TEXTS, "objective.mask_prob=0.2"], 2, "is a setting of objective=masked"),
        ([*PAIR_TABLE, "objective=pairs", "objective.too_long=error"], 3, "long for a context of"),
    ],
)
def test_errors_are_one_line(run, overrides, code, message):
    exit_code, _, stderr = run("model.context_length=8", *overrides)
    assert exit_code == code, stderr
    assert re.search(message, stderr), stderr
    assert stderr.startswith("error: ") and stderr.count("\n") == 1


def test_a_large_text_is_announced(run, monkeypatch):
    """Training a tokenizer and encoding may take minutes."""
    monkeypatch.setattr(prepare, "LARGE", len(TEXT))
    code, _, stderr = run(*TEXTS)
    assert code == 0 and stderr == f"tokenizing {decimal(len(TEXT))} ...\n"
