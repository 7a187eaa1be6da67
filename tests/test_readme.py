"""What the README says is so: its commands run, what it lists is there, its attention joins the others."""

import io
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import sample
from configs.cli import run_command
from configs.compose import compose
from model.hub.__main__ import main as hub
from tests.parts import ROOT, names
from tests.test_house import GROUPS
from train import main as train
from training.sweep import launch

README = (ROOT / "README.md").read_text()


def run(*words, cwd):
    return subprocess.run([sys.executable, *words], cwd=cwd, capture_output=True, text=True)


@pytest.fixture
def copy(tmp_path):
    for folder in ("model", "data", "configs", "training", "tests"):
        shutil.copytree(
            ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__", "cache")
        )
    for file in ("pyproject.toml", "README.md", "train.py", "sample.py"):
        shutil.copy(ROOT / file, tmp_path)
    return tmp_path


def test_an_attention_of_your_own(copy):
    """One class, one line, one yaml, taken from the README; then the grid finds it."""
    _, new_class, line = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    [yaml] = re.findall(r"```yaml\n(.*?)```", README, re.DOTALL)
    path = copy / "model/attention.py"
    text = path.read_text().replace("ATTENTIONS = {\n", f"{new_class}\n\nATTENTIONS = {{\n{line}")
    path.write_text(text)
    (copy / "configs/attention/talking.yaml").write_text(yaml)
    proof = run("-m", "pytest", "-k", "talking", "-p", "no:cacheprovider", cwd=copy)
    assert proof.returncode == 0, proof.stdout
    passed = int(re.search(r"(\d+) passed", proof.stdout)[1])
    per_kind = len(names("position")) * len(names("block")) * 3
    assert passed > per_kind
    shown = run("-m", "model.shapes", "model=t5", "attention=talking", cwd=copy)
    assert "scores_BTSH" in shown.stdout, shown.stderr


def test_the_python_runs():
    code, _, _ = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    done = run("-c", code, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(r"\[(\[\d+\](, )?){5}\]", done.stdout.strip())


LINES = [line.strip() for line in README.splitlines() if line.startswith("    python ")]
TRAIN, SAMPLE = ([line for line in LINES if f"python {name}.py" in line] for name in ("train", "sample"))


PLANS = [line for line in TRAIN if "dry_run" in line or "--cfg" in line]
HUB = [line for line in LINES if "model.hub" in line]


@pytest.mark.parametrize(
    "line", [line for line in LINES if line in PLANS or line not in TRAIN + SAMPLE + HUB]
)
def test_commands_run(line):
    done = run(*line.split()[1:], cwd=ROOT)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("line", [line for line in TRAIN if "name=" not in line and line not in PLANS])
def test_training_runs(line, copy):
    """Shortened, in a copy, which keeps the run."""
    done = run(*line.split()[1:], "train.steps=2", "eval.max_examples=2", cwd=copy)
    assert done.returncode == 0, done.stderr
    [folder] = (copy / "runs").iterdir()
    assert (folder / "checkpoints/latest").read_text() == "step-00000002\n"


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A folder with the runs that are sampled from, much shortened, that of `python train.py` the newest."""
    home, before = tmp_path_factory.mktemp("trained"), Path.cwd()
    (home / "book.txt").write_text(README)
    short = ["size=tiny", "tokenizer=byte", "train.steps=2", "train.batch_size=2", "eval.max_examples=2"]
    os.chdir(home)
    try:
        for line in [*(line for line in TRAIN if "name=" in line), "python train.py"]:
            words = shlex.split(line)[2:]
            small = (
                ["data.size=200"] if "experiment=reverse" in words else ["data=text", "data.path=book.txt"]
            )
            assert launch(train, compose, [*words, *small, *short]) == 0
    finally:
        os.chdir(before)
    return home


@pytest.mark.parametrize("line", SAMPLE)
def test_sampling_runs(line, trained, monkeypatch, capsys):
    monkeypatch.chdir(trained)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"def \n")))
    words = shlex.split(line)[2:]
    assert run_command(sample.main, words) == 0
    shown = capsys.readouterr().out
    assert shown
    if "--attention-map" in words:
        assert Path("maps.png").exists()


def test_the_hub_takes_and_gives(trained, monkeypatch):
    """All of its commands but that which needs a network, one after another."""
    monkeypatch.chdir(trained)
    for line in HUB:
        if "openai-community" not in line:
            assert run_command(hub, shlex.split(line)[3:]) == 0
    assert (trained / "runs/small_again/checkpoints/latest").exists()


def test_every_option_is_told():
    told = set(re.findall(r"`(--[a-z-]+)", README))
    assert {name for name in re.findall(r'"(--[a-z-]+)"', (ROOT / "training/asking.py").read_text())} <= told


def test_the_walk_looks_as_shown():
    shown = run("-m", "model.shapes", "model=llama", cwd=ROOT).stdout
    excerpt = [line.strip() for line in README.splitlines() if re.match(r"    \w+_[A-Z1]+ +\(", line)]
    assert len(excerpt) == 6
    for line in excerpt:
        assert line in shown, line


@pytest.mark.parametrize("group", [*GROUPS, "model", "size", "experiment"])
def test_the_kinds_listed_are_there(group):
    [row] = [line for line in README.splitlines() if line.startswith(f"| `{group}=`")]
    listed = re.sub(r"\(.*?\)|:.*", "", row.split("|")[2]).split(",")
    assert {name.strip() for name in listed} == set(names(group))


def test_the_map_shows_every_file():
    for path in (path for folder in ("model", "data", "training") for path in (ROOT / folder).rglob("*.py")):
        assert path.stem.startswith("__") or path.name in README, f"{path.name} is missing from the README"
