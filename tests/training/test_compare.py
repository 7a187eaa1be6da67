"""Several runs: one after another with -m, and side by side in one table."""

import json
import math
import re
from itertools import product
from pathlib import Path

import pytest
import yaml

from configs.cli import run_command
from tests.training.runs import files, last
from training.compare import main


def table(text):
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]


def column(text, name):
    head, _, *body = table(text)
    return [row[head.index(name)] for row in body]


def test_a_sweep_of_which_one_run_fails(start):
    """The others are trained; the table has its first evaluation. runs/ may be a link."""
    Path("disk").mkdir()
    Path("runs").symlink_to("disk")
    usual = ["optimizer=adamw", "train.grad_clip=0", "optimizer.weight_decay=0", "train.steps=2"]
    output, errors = start("-m", "optimizer.lr=0.01,1e30,0.02", *usual, "log.every=1", code=5)
    assert "run 1 failed\nerror: step 2: the " in errors and "Traceback" not in errors
    assert errors.count("error: ") == 1
    [home] = Path("runs").iterdir()
    assert output.count("\n| run ") == 3, "after each run"
    final = output[output.rindex("| run ") :]
    assert table((home / "comparison.md").read_text()) == table(final)
    losses = column(final, "val loss")
    for run, loss in zip(column(final, "run"), losses, strict=True):
        name = run.removesuffix(" (unfinished)")
        assert (name == run) == (name != "1")
        assert loss == f"{last(home / name, 'val_loss')[0]:.3f}"
    assert len(losses) == 3 and losses == sorted(losses, key=float)
    assert (home / "comparison.png").exists() and not list(Path().glob("comparison*"))
    more = ["resume=true", "train.steps=4", "eval.every=null"]
    assert "resuming from step 2\n" in start.plainly(f"name={home.name}/0", *more).out


def test_a_sweep_that_is_repeated_goes_on(start):
    """With the runs that it did not finish. Other settings need another folder."""
    sweep = ["-m", "hydra.sweep.dir=runs/mine", "train.steps=2", "checkpoint.every=1"]
    start(*sweep, "seed=0,1")
    whole = files("runs/mine")
    for path in ("1/metrics.jsonl", "1/checkpoints/step-00000002/state.json"):
        Path("runs/mine", path).unlink()  # as if it had been killed
    assert "runs/mine/1, resuming from step 1" in start(*sweep, "seed=0,1").out
    now = files("runs/mine")
    kept = {path: data for path, data in whole.items() if path.parts[2] == "0"}
    assert all(now[path] == data for path, data in kept.items())
    weights = Path("runs/mine/1/checkpoints/step-00000002/model.safetensors")
    assert now[weights] == whole[weights]

    errors = start(*sweep, "seed=5,6", code=2).err
    for number in (0, 1):
        sentence = f"runs/mine/{number} already exists, with other settings; choose another"
        assert sentence in errors
    assert files("runs/mine/0") == kept


@pytest.fixture
def compare(room, monkeypatch, capsys):
    """compare(*names and options) -> what it prints"""

    def compare(*arguments, code=0):
        monkeypatch.setattr("sys.argv", ["compare", *map(str, arguments)])
        assert run_command(main) == code
        return "".join(capsys.readouterr())

    return compare


def make_run(name, seed=0, loss=3.0, code="a", overrides=(), figures=(), full=True, **settings):
    """The files of a run that are compared."""
    config = {"seed": seed, "name": name, "model": {"kind": "decoder"}, "tokenizer": {}, **settings}
    config |= {"choices": {"optimizer": "muon"}, "overrides": list(overrides), "code": code}
    folder = Path(name)
    folder.mkdir()
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    row = {"step": 5, "tokens": 640, "val_loss": loss, "full": full, **dict(figures)}
    (folder / "metrics.jsonl").write_text(json.dumps(row) + '\n{"step": 6, "lo')


def test_a_swept_group_of_settings_and_another_text_have_columns(compare):
    for name, weight in {"a": 1, "b": 2}.items():
        data = {"data": {"sources": {"x": {"weight": weight, "kind": "text"}}}}
        make_run(name, 0, 3.0, overrides=["data.sources={}"], figures={"dataset": 9 * name}, **data)
    output = compare("a", "b")
    assert column(output, "data.sources.x.weight") == ["1", "2"]
    assert column(output, "dataset") == ["aaaaaaaa", "bbbbbbbb"] and " kind" not in output


def test_seeds_are_one_row_with_mean_and_deviation(compare):
    """The same seeds are paired: the mean of 0.1, 0.2 and 0.3 is 0.2, with a deviation of 0.1. A run
    whose loss is not a number is last."""
    groups = {"a": [math.nan, 3.0], "b": [6.0], "c": [3.1, 4.2, 5.3], "d": [3.0, 4.0, 5.0]}
    for lr, (name, losses) in enumerate(groups.items()):
        for seed, loss in enumerate(losses):
            run = f"{name}{seed}"
            options = {"optimizer": {"lr": lr}, "overrides": ["optimizer.lr=1"]}
            make_run(run, seed, loss, full=run != "c1", **options)
    output = compare(*sorted(Path().glob("??")))
    assert column(output, "run") == ["d0 (n=3)", "c0 (n=3) (unfinished)", "b0", "a0 (n=2)"]
    assert column(output, "optimizer.lr") == ["3", "2", "1", "0"]
    assert column(output, "val loss") == ["4.000 ± 1.000", "4.200 ± 1.100", "6.000", "nan ± nan"]
    paired = ["-", "+0.200 ± 0.100 (3 pairs)", "-", "+nan ± nan (2 pairs)"]
    assert column(output, "val loss - best") == paired


def test_of_several_tokenizers_the_fewest_bits_per_byte_are_best(compare):
    make_run("a", loss=2.0, figures={"val_bpb": 1.5})
    make_run("b", loss=3.0, figures={"val_bpb": 1.2}, x=1)
    assert column(compare("a", "b"), "run") == ["b", "a"]


def test_a_law_predicts_a_larger_run(compare):
    """The runs lie a bit above or below a law."""

    def loss(n, d):
        return (300 / n**0.6 + 60_000 / d) ** 0.4

    def make(n, d, noise, **settings):
        figures = {"parameters": n, "tokens": d, "seconds": n * d / 1e6}
        settings |= {"overrides": ["train.steps=1", "optimizer.lr=1"], "train": {"steps": d}}
        make_run(f"{n}-{d}", loss=loss(n, d) + noise, figures=figures, **settings)

    for n, d in product((1000, 2000, 4000), (10_000, 20_000, 40_000)):
        make(n, d, 0.002 if d == 20_000 else -0.002)
    make(3000, 30_000, 9.0, full=False)
    names = [*Path().glob("*000")]
    output = compare("--fit", *names, "--at", "8000", "160000", "--seconds", "1280")
    for line in output.splitlines()[-2:]:
        numbers = re.findall(r"[\d.]+", line.replace(",", ""))
        n, d, times, expected, low, high = map(float, numbers[-6:])
        assert times == 8 and low < loss(n, d) < high < 1.1 * low
        assert expected == pytest.approx(loss(n, d), 0.01)
    lowest = min(loss(n, 1.28e9 / n) for n in range(1000, 99_000))
    assert loss(n, d) < 1.01 * lowest

    make(5000, 10_000, 0, optimizer={"lr": 2})
    assert "differ in optimizer.lr\n" in compare("--fit", *names, "5000-10000", code=2)
    assert "three sizes and three lengths; these are 3 " in compare("--fit", *names[:3], code=2)


def test_a_sweep_stands_for_its_runs(compare):
    Path("sweep").mkdir()
    make_run("sweep/a")
    make_run("sweep/b", loss=2.0, full=False)  # of the same seed: a row of its own
    Path("sweep/comparison.md").touch()
    for paths in (["sweep"], Path("sweep").iterdir()):
        assert column(compare(*paths), "run") == ["b (unfinished)", "a"]


def test_columns_are_what_was_chosen_and_differs_and_the_code(compare):
    """The table is saved only where it is asked for."""
    make_run("a", overrides=["x=1", "same=1"], x=1, same=1, follows=1)
    make_run("b", overrides=["x=2", "same=1"], x=2, same=1, follows=2)
    shown = table(compare("a", "b"))
    assert shown[0][1:-1] == ["x", "steps", "tokens"]
    assert not list(Path().rglob("comparison*"))
    compare("a", "b", "--to", "new")
    assert table(Path("new/comparison.md").read_text()) == shown
    assert Path("new/comparison.png").read_bytes().startswith(b"\x89PNG")
    make_run("c", loss=4.0, code="b")
    assert column(compare("a", "c"), "code") == ["a", "b"]
