"""`python -m data` shows what would be trained on, and says in one sentence what cannot be."""

import json
import re

import pytest

from configs.cli import run_command
from configs.compose import compose
from data.__main__ import main
from data.corpus import load
from data.objectives import IGNORE_INDEX
from model import build_model
from model.loss import loss

TEXT = "".join(f"line {i} of a text, don't {i * i} <|endoftext|>\n" for i in range(400))
PAIRS = [{"source": f"what is {i}", "target": f"{i} is a number"} for i in range(90)]


@pytest.fixture
def run(tmp_path, capsys, monkeypatch):
    """The output of the command where these files are, or its error."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "book.txt").write_text(TEXT)
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(pair) + "\n" for pair in PAIRS))

    def shown(*words):
        code = run_command(main, ["size=tiny", "tokenizer=byte", *words])
        out, err = capsys.readouterr()
        return (code, err) if code else out

    return shown


TEXTS = ["data=text", "data.path=book.txt"]
OF_PAIRS = ["data=pairs", "data.path=pairs.jsonl"]


def test_what_is_found_is_counted(run):
    out = run(*TEXTS)
    cut = int(len(TEXT) * 0.95)
    for n in (cut, len(TEXT) - cut):
        assert f"{n:,}" in out
    assert "byte, 257 words in its vocabulary" in out and "1.00 bytes in a token" in out
    assert "next_token" in out and "16, so" in out


@pytest.mark.parametrize(
    ("words", "seen"),
    [
        (TEXTS, ["tokens      ", "targets     "]),
        ([*TEXTS, "model=bert"], ["<mask>"]),
        ([*TEXTS, "model=t5"], ["source      ", "<sentinel_0>", "<start>", "<end>"]),
        ([*OF_PAIRS, "model=gpt2"], ["<start>", "targets     '", "is a number<end>'"]),
        ([*OF_PAIRS, "model=bart"], ["source      'what is", "tokens      '<start>", "is a number<end>'"]),
    ],
)
def test_every_objective_is_shown(run, words, seen):
    out = run(*words)
    assert all(part in out for part in seen), out


@pytest.mark.parametrize(
    "words", [TEXTS, [*TEXTS, "model=bert"], [*TEXTS, "model=t5"], [*OF_PAIRS, "model=bart"]]
)
def test_a_batch_is_what_the_model_takes(run, words):
    """Its inputs are the keywords of forward, and the loss finds as many targets as it says."""
    run(*words)
    config = compose(["size=tiny", "tokenizer=byte", *words])
    loaders = load(config)
    model, batch = build_model(config.model, loaders.tokenizer.vocab_size), loaders.train.batch(0)
    total, count = loss(model.hidden(**batch.inputs), model.head, batch.targets)
    assert count == batch.count == (batch.targets != IGNORE_INDEX).sum() and total > 0


@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        (["data=text"], 2, "data.path has no value"),
        (["data=text", "data.path="], 2, "data.path is empty"),
        (["data=text", "data.path=none.txt"], 3, "there is no file or folder none.txt"),
        (
            ["data=text", "data.path=book.txt", "model.context_length=100000"],
            3,
            "train holds .* tokens and a window needs",
        ),
        ([*OF_PAIRS, "data.source=question"], 3, "has no field 'question'; its fields are: source, target"),
        ([*OF_PAIRS, "objective.too_long=error", "model.context_length=8"], 3, "too many for a context of 8"),
        ([*TEXTS, "data.val_fraction=2"], 2, "data.val_fraction is 2; expected a share between 0 and 1"),
        ([*TEXTS, "data.val_fraction=abc"], 2, "validation is 'abc'; expected a finite number"),
        ([*TEXTS, "~data.val_fraction"], 2, "data needs a value for validation"),
        ([*TEXTS, "data.kind=[a]"], 2, r"data.kind is \['a'\]; choose one of: python"),
        ([*TEXTS, "objective.kind=[a]"], 2, r"objective.kind is \['a'\]; choose one of"),
        ([*TEXTS, "model.context_length=0"], 2, "model.context_length must be above 0 and is 0"),
        ([*TEXTS, "data.documents=line"], 2, "there is no data.documents .did you mean data.split_on"),
        ([*TEXTS, "data.split_on=5"], 2, "document is 5; expected a word"),
        (["data=txt"], 2, r"there is no data=txt \(did you mean text\?\)"),
        (
            ["tokenizer=bpe", "tokenizer.vocab_size=10", *TEXTS],
            2,
            "tokenizer.vocab_size is 10; it must be at least",
        ),
        (
            [*TEXTS, "model=bert", "objective=next_token"],
            2,
            "needs a model whose kind is decoder, not encoder; use",
        ),
        (
            [*TEXTS, "objective=masked"],
            2,
            "objective=masked needs a model whose kind is encoder, not decoder",
        ),
        (
            [*TEXTS, "objective=pairs"],
            2,
            "objective=pairs reads pairs and data=text gives text; objective=auto",
        ),
        ([*OF_PAIRS, "model=bert"], 2, "not encoder; use data of plain text"),
        ([*TEXTS, "objective=span"], 2, "objective=span needs a model whose kind is encoder_decoder"),
        ([*TEXTS, "train.batch_size=0"], 2, "train.batch_size must be from 1 to 1,048,576 and is 0"),
        ([*TEXTS, "objective.share=0.2"], 2, "there is no objective.share"),
        ([*TEXTS, "model=bert", "objective.share=7"], 2, "share must be between 0 and 1 and is 7"),
    ],
)
def test_errors_are_one_sentence(run, words, code, sentence):
    found, said = run(*words)
    assert found == code, said
    assert re.search(sentence, said), said
    assert said.startswith("error: ") and said.count("\n") == 1


def test_an_objective_left_open_can_be_tuned(run):
    assert compose([*TEXTS, "model=bert", "objective.share=0.3"]).objective == {
        "kind": "masked",
        "share": 0.3,
    }
    assert compose([*TEXTS, "model=t5"]).objective["kind"] == "span"
    assert compose([*OF_PAIRS, "model=t5"]).objective["kind"] == "pairs"
    assert compose([*TEXTS, "objective=auto"]).objective["kind"] == "next_token"


@pytest.mark.parametrize(
    "name",
    [
        "my book (1).txt",
        "${x}.txt",
        "${oc.env:HOME}",
        "a=b.txt",
        "a,b.txt",
        "書.txt",
        "it's \\.txt",
        "{x}[y].txt",
    ],
)
def test_paths_need_no_quotes(run, tmp_path, name):
    (tmp_path / name).write_text(TEXT)
    assert "next_token" in run("data=text", f"data.path={name}")
