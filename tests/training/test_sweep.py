"""Several runs: one after another by -m, and side by side in one table."""

import re
from pathlib import Path

import pytest

from configs.cli import run_command
from tests.training.runs import rows
from training.compare import main as compare


def table(text):
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_a_sweep_ends_with_a_comparison(start):
    code, said, _ = start("-m", "model=gpt2,modern", "optimizer.lr=0.01,0.02", "train.steps=2", "log.every=1")
    [home] = Path("runs").iterdir()
    names = {f"model-{model}_optimizer.rate-{rate}" for model in ("gpt2", "modern") for rate in (0.01, 0.02)}
    assert code == 0 and {path.name for path in home.iterdir()} == names | {"comparison.md", "comparison.png"}
    head, _, *body = table(said)
    assert table((home / "comparison.md").read_text()) == table(said)
    losses = [float(row[head.index("validation")]) for row in body]
    assert losses == sorted(losses) and {row[0] for row in body} == names
    for row in body:
        shown = dict(zip(head, row, strict=True))
        last = rows(home / row[0], "val_loss")[-1][0]
        assert shown["validation"] == f"{last:.3f}" and shown["steps"] == "2"
        assert shown["optimizer.lr"] == row[0][-4:]
    assert (home / "comparison.png").read_bytes().startswith(b"\x89PNG")


def test_a_failed_run_does_not_end_a_sweep(start):
    code, _, said = start("-m", "seed=0,1", "optimizer=adamw", "optimizer.lr=1e30,1e-3", "train.grad_clip=0")
    [home] = Path("runs").iterdir()
    finished = [path.name for path in home.iterdir() if (path / "checkpoints/step-00000004").exists()]
    assert code == 5 and said.count("error: step") == 2 and len(finished) == 2
    compared = (home / "comparison.md").read_text()
    assert {row[0] for row in table(compared)[2:]} == set(finished)
    assert compared.count("1e30 (exit code 5)") == 2


def test_what_only_a_part_refuses_is_said_before_the_first_run(start):
    code, said, error = start("-m", "optimizer.lr=1e-3,nan")
    assert code == 2 and "rate is nan" in error and "1 of 2" not in said and not Path("runs").exists()


def test_a_run_of_a_sweep_goes_on_by_its_name(start):
    assert start("-m", "seed=1,2")[0] == 0
    [home] = Path("runs").iterdir()
    code, said, _ = start.plainly(f"name={home.name}/seed-1", "resume=true", "train.steps=6")
    assert code == 0 and f"{home}/seed-1 goes on from step 4" in said
    assert (home / "seed-1/checkpoints/step-00000006").exists()
    assert start.plainly(f"name={home.name}/../../seed-1", "resume=true")[0] == 2


def test_texts_are_swept_as_well(start):
    Path("other.txt").write_text(Path("book.txt").read_text())
    assert start("-m", "data.path=book.txt,other.txt")[0] == 0
    [home] = Path("runs").iterdir()
    assert {path.name for path in home.iterdir() if path.is_dir()} == {
        "data.path-book.txt",
        "data.path-other.txt",
    }


def test_a_sweep_of_plans_makes_nothing(start):
    code, said, _ = start("-m", "model=gpt2,bert", "dry_run=true")
    assert code == 0 and len(re.findall(r"^arithmetic", said, re.MULTILINE)) == 2
    assert not Path("runs").exists()


def test_any_runs_can_be_compared(run, capsys):
    folders = [str(run(f"seed={seed}", f"name=seed{seed}")) for seed in (1, 2)]
    capsys.readouterr()
    assert run_command(compare, folders) == 0
    head, _, *body = table(capsys.readouterr().out)
    assert [row[head.index("seed")] for row in body] in (["1", "2"], ["2", "1"])
    assert Path("comparison.md").exists() and Path("comparison.png").exists()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["nowhere"], "error: there is no folder nowhere; give the folders of runs"),
        (["."], "error: . is no folder of a run: it lacks config.yaml or metrics.jsonl"),
    ],
)
def test_what_is_no_run_is_told(room, capsys, words, sentence):
    assert run_command(compare, words) == 2
    assert capsys.readouterr().err.startswith(sentence)


def test_a_torn_last_line_is_left_out(run, capsys):
    folder = run("name=torn", "log.every=1")
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"step": 5, "lo')
    assert run_command(compare, [str(folder)]) == 0
    [_, _, row] = table(capsys.readouterr().out)
    assert row[0] == "torn" and row[1] == "4"
