"""Several runs: one after another with -m, and side by side in one table."""

import re
from pathlib import Path

from configs.cli import run_command
from tests.training.runs import rows
from training.compare import edge_hints
from training.compare import main as compare


def table(text):
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_a_sweep_ends_with_a_comparison(start):
    sweep = ["-m", "model=gpt2,modern", "optimizer.lr=0.01,0.02", "train.steps=2", "log.every=1"]
    code, stdout, _ = start(*sweep)
    [home] = Path("runs").iterdir()
    names = {
        f"model-{model}_optimizer.lr-{lr}" for model in ("gpt2", "modern") for lr in (0.01, 0.02)
    }
    assert code == 0 and {path.name for path in home.iterdir()} == names | {
        "comparison.md",
        "comparison.png",
    }
    head, _, *body = table(stdout)
    assert table((home / "comparison.md").read_text()) == table(stdout)
    losses = [float(row[head.index("val loss")]) for row in body]
    assert losses == sorted(losses) and {row[0] for row in body} == names
    for row in body:
        shown = dict(zip(head, row, strict=True))
        last = rows(home / row[0], "val_loss")[-1][0]
        assert shown["val loss"] == f"{last:.3f}" and shown["steps"] == "2"
        assert shown["optimizer.lr"] == row[0][-4:]
    assert (home / "comparison.png").read_bytes().startswith(b"\x89PNG")
    lr = body[0][head.index("optimizer.lr")]
    side = {"0.01": "smaller", "0.02": "larger"}[lr]
    hint = f"optimizer.lr={lr} is best, at the edge of the values tried; {side} ones may be better"
    assert hint in stdout and hint in (home / "comparison.md").read_text()
    assert "overrides" not in head and "seed" not in stdout


def test_a_failed_run_does_not_stop_a_sweep(start):
    sweep = ["log.every=1,2", "optimizer=adamw", "optimizer.lr=1e30,1e-3", "train.grad_clip=0"]
    code, _, stderr = start("-m", *sweep)
    [home] = Path("runs").iterdir()
    finished = [
        path.name for path in home.iterdir() if (path / "checkpoints/step-00000004").exists()
    ]
    assert code == 5 and stderr.count("error: step") == 2 and len(finished) == 2
    compared = (home / "comparison.md").read_text()
    assert {row[0] for row in table(compared)[2:]} == set(finished)
    assert compared.count("1e30 (exit code 5)") == 2


def test_every_run_is_validated_before_the_first(start):
    code, stdout, stderr = start("-m", "optimizer.lr=1e-3,nan")
    assert (
        code == 2 and "lr is nan" in stderr and "1 of 2" not in stdout and not Path("runs").exists()
    )


def test_a_run_of_a_sweep_is_resumed_by_its_name(start):
    assert start("-m", "seed=1,2")[0] == 0
    [home] = Path("runs").iterdir()
    code, stdout, _ = start.plainly(f"name={home.name}/seed-1", "resume=true", "train.steps=6")
    assert code == 0 and f"resuming {home}/seed-1 from step 4" in stdout
    assert (home / "seed-1/checkpoints/step-00000006").exists()
    assert start.plainly(f"name={home.name}/../../seed-1", "resume=true")[0] == 2


def test_a_sweep_of_dry_runs_creates_nothing(start):
    code, stdout, _ = start("-m", "model=gpt2,bert", "dry_run=true")
    assert code == 0 and len(re.findall(r"^memory", stdout, re.MULTILINE)) == 2
    assert not Path("runs").exists()


def test_any_runs_can_be_compared(run, capsys):
    """A last line that a kill has cut off is ignored."""
    folders = [str(run(f"train.batch_size={size}", f"name=batch{size}")) for size in (1, 2)]
    with open(f"{folders[0]}/metrics.jsonl", "a") as file:
        file.write('{"step": 5, "lo')
    capsys.readouterr()
    assert run_command(compare, folders) == 0
    head, _, *body = table(capsys.readouterr().out)
    sizes = sorted(row[head.index("train.batch_size")] for row in body)
    assert sizes == ["1", "2"] and body[0][head.index("steps")] == "4"
    assert Path("comparison.md").exists() and Path("comparison.png").exists()


def test_folders_that_are_not_runs(room, capsys):
    for folder, sentence in (
        ("nowhere", "error: no such run: nowhere"),
        (".", "error: . is not the folder of a run: it has no config.yaml"),
    ):
        assert run_command(compare, [folder]) == 4
        assert capsys.readouterr().err.startswith(sentence)


def test_the_best_value_at_the_edge_of_a_sweep_is_pointed_out():
    def hints(key, *values):
        return list(edge_hints([{key: value} for value in values], {key}))

    assert hints("optimizer.lr", 0.3, 0.1, 0.2) == [
        "optimizer.lr=0.3 is best, at the edge of the values tried; larger ones may be better"
    ]
    assert "smaller ones" in hints("train.batch_size", 1, 8, 4)[0]
    assert not hints("optimizer.lr", 0.2, 0.1, 0.3) and not hints("seed", 3, 1, 2)
    assert (
        not hints("model.kind", "a", "b")
        and not hints("optimizer.lr", 1, 1)
        and not hints("x", None, 1)
    )
