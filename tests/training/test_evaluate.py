"""`python -m training.evaluate` judges a run or a Hugging Face folder as the run judged itself."""

import json
import math
from pathlib import Path

import pytest
import torch
import transformers as hf

from configs.cli import run_command
from configs.compose import compose
from data.__main__ import main as preview
from data.corpus import load_data
from data.tokenizers.tokenizer import Tokenizer
from model.hub.__main__ import export_run
from model.pretrained import init_tokenizer
from tests.data.corpora import write_rows
from tests.data.test_main import PAIR_TABLE, PAIRS
from tests.model.hub.hub_models import END, PLAIN, build_hf, save
from tests.parts import thin
from tests.training.runs import TEXT, read_lines
from training.evaluate import main

TABLE = PAIR_TABLE.split()
PAIR = [*TABLE, "model=bart"]
BOOK = ["data=text", "data.path=book.txt"]
LOGGED = {"tokens", "seconds", "full", "parameters", "dataset"}


@pytest.fixture
def output_of(room, capsys):
    """output_of(main, *arguments) -> what it prints, or its one line of error"""
    write_rows("pairs.jsonl", PAIRS)

    def output_of(main, *arguments):
        capsys.readouterr()
        code = run_command(lambda: main(list(arguments)))
        output, errors = capsys.readouterr()
        if code:
            assert errors.startswith("error: ") and errors.count("\n") == 1, errors
        return errors if code else output

    return output_of


@pytest.fixture
def evaluate(output_of):
    return lambda *arguments: output_of(main, *arguments)


@pytest.fixture
def gpt2(room):
    """A folder of GPT-2 with no special token but its end; its model."""
    model = build_hf("gpt2", pad_token_id=None, bos_token_id=None)
    save(model, room / "gpt2", settings=PLAIN | {"eos_token": "<eos>"})
    return model


@pytest.mark.parametrize(
    "overrides",
    thin([["model=gpt2", "ema.decay=0.9"], ["model=bert"], ["model=t5"], PAIR], [PAIR]),
)
def test_the_figures_of_a_run_are_those_that_it_logged(run, evaluate, overrides):
    folder = str(run(*overrides))
    row = read_lines(f"{folder}/metrics.jsonl")[-1]
    found = json.loads(evaluate("--run", folder, "--json"))
    assert found.pop("run") == folder and found.pop("examples") > 1
    assert found == {name: row[name] for name in row if name not in LOGGED} and row["full"]
    line = evaluate("--run", folder, "--limit", "1")
    assert line.startswith(f"{folder}, step 4: val loss ") and "(1 examples)" in line
    assert evaluate("--run", folder, "--checkpoint", "best") == evaluate()


def loss_of(model, *rows):
    """The mean loss of (ids, how many of them are no targets), each alone, by transformers."""
    losses = []
    for ids, n_given in rows:
        logits = model(torch.tensor([ids[:-1]])).logits[0, n_given - 1 :]
        targets = torch.tensor(ids[n_given:])
        losses.append(torch.nn.functional.cross_entropy(logits, targets, reduction="none"))
    return torch.cat(losses).mean().item()


@torch.no_grad()
def test_the_loss_of_a_folder_is_that_of_transformers(evaluate, gpt2):
    found = json.loads(evaluate("--run", "gpt2", *BOOK, "precision=fp32", "--json"))
    settings = ["size=tiny", "model.context_length=64", *BOOK]
    part = load_data(compose(settings), init_tokenizer("gpt2")).validation.file
    ids = part.tokens.tolist()
    rows = [(ids[start : start + 65], 1) for start in range(0, len(ids) - 1, 64)]
    assert found["val_loss"] == pytest.approx(loss_of(gpt2, *rows), rel=1e-5)
    bits = found["val_loss"] / math.log(2) * len(ids) / part.n_bytes
    assert found["val_bpb"] == pytest.approx(bits) and found["step"] == 0
    shorter = json.loads(evaluate("--run", "gpt2", *BOOK, "model.context_length=8", "--json"))
    assert shorter["examples"] == (len(ids) - 1) // 8


def test_what_fine_tuning_will_see(output_of, gpt2, start):
    output = output_of(preview, "init_from=gpt2", "model.context_length=8", *BOOK)
    assert "hub, vocab_size 300" in output and "first batch: tokens (16, 8), " in output
    assert "at vocab 300\n" in start.plainly("dry_run=true", "init_from=gpt2").out


def test_gpt2_learns_pairs_without_a_pad_token(start, evaluate, output_of, gpt2):
    """Its end token takes the place of start and pad; no loss sees the latter."""
    output = output_of(preview, "init_from=gpt2", *TABLE)
    assert "<eos>" in output and "<start>" not in output
    assert Tokenizer(9, {"end": 8, "start": 8}).decode_with_specials([8]) == "<end>"
    tuning = ["optimizer.lr=0.01", "train.steps=20", "precision=fp32", "name=tuned"]
    start.plainly("init_from=gpt2", *TABLE, *tuning)
    export_run("runs/tuned", "latest", Path("out"), None)
    model = hf.AutoModelForCausalLM.from_pretrained("out")
    tokenizer = hf.AutoTokenizer.from_pretrained("out")

    arguments = ["--run", "runs/tuned", "--json", "--answers", "answers.jsonl"]
    found = json.loads(evaluate(*arguments))
    answers = read_lines("answers.jsonl")
    assert len(answers) == found["examples"] > 2
    correct = sum(row["prediction"] == row["target"] for row in answers)
    assert found["val_exact_match"] == correct / len(answers)
    prompts = [[*tokenizer(row["source"])["input_ids"], END] for row in answers]
    targets = [[*tokenizer(row["target"])["input_ids"], END] for row in answers]
    rows = [(p + t, len(p)) for p, t in zip(prompts, targets, strict=True)]
    with torch.no_grad():
        assert found["val_loss"] == pytest.approx(loss_of(model, *rows), rel=1e-5)
    assert "answers.jsonl already exists" in evaluate(*arguments)


BAD = {
    "--run runs/nine": "there is no folder runs/nine (did you mean runs/mine?)",
    "data=text": "a value is needed for data.path",
    "data=pairs data.path=pairs.jsonl model.n_layers=1": "model.n_layers has no effect on an",
    "optimizer.lr=1": "optimizer.lr has no effect on an evaluation: its settings are data, ",
    "data.fraction=0.1": "unknown setting data.fraction (did you mean data.val_fraction?)",
    "data.val_fraction=0.1": "there is no data to evaluate runs/mine on; add data= and its settings",
    "objective=masked data=python": "objective=masked needs text and a model whose kind is encod",
    "model.context_length=99": "model.context_length is 99, and runs/mine has 32",
    "--answers new.jsonl": "--answers needs pairs or conversations",
    "--limit 0": "--limit is 0; expected an integer at least 1",
    "--checkpoint 9": "runs/mine has no checkpoint '9'; its steps are: 4",
    "--run gpt2": "there is no data to evaluate gpt2 on; add data= and its settings, such as data=text data.pa",
    "--run gpt2 --checkpoint best data=python": "gpt2 is a Hugging Face folder: it has no che",
}


def test_bad_input(run, evaluate, gpt2):
    run("name=mine", "model=gpt2")
    for arguments, message in BAD.items():
        assert message in evaluate(*arguments.split()), arguments
    assert not Path("new.jsonl").exists()
    Path("book.txt").write_text(TEXT.replace("line", "verse"))
    assert "text has changed since runs/mine was trained on it; add data=" in evaluate()
    assert evaluate(*BOOK).startswith("runs/mine, step 4: val loss ")
