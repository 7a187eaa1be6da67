"""What the README says is so: its commands run, what it lists is there, its attention joins the others."""

import re
import shutil
import subprocess
import sys

import pytest

from tests.parts import ROOT, names
from tests.test_house import GROUPS

README = (ROOT / "README.md").read_text()


def run(*words, cwd):
    return subprocess.run([sys.executable, *words], cwd=cwd, capture_output=True, text=True)


@pytest.fixture
def copy(tmp_path):
    for folder in ("model", "data", "configs", "training", "tests"):
        shutil.copytree(
            ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__", "cache")
        )
    for file in ("pyproject.toml", "README.md", "train.py"):
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


def commands():
    return [line.strip() for line in README.splitlines() if line.startswith("    python ")]


def test_the_hub_takes_and_gives(copy):
    """All of its commands but that which needs a network, one after another."""
    train, *others = [c for c in commands() if "name=small" in c or "model.hub" in c]
    for command in [f"{train} train.steps=1 eval.windows=1", *others]:
        if "openai-community" not in command:
            done = run(*command.split()[1:], cwd=copy)
            assert done.returncode == 0, done.stderr
    assert (copy / "runs/small_again/checkpoints/latest").exists()


@pytest.mark.parametrize("command", [c for c in commands() if "train.py" not in c and "model.hub" not in c])
def test_commands_run(command):
    done = run(*command.split()[1:], cwd=ROOT)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("command", [c for c in commands() if "train.py" in c])
def test_training_runs(command, copy):
    """Shortened, in a copy, which keeps the run."""
    done = run(*command.split()[1:], "train.steps=2", "eval.windows=2", cwd=copy)
    assert done.returncode == 0, done.stderr
    [folder] = (copy / "runs").iterdir()
    assert (folder / "checkpoints/latest").read_text() == "step-00000002\n"


def test_the_walk_looks_as_shown():
    shown = run("-m", "model.shapes", "model=llama", cwd=ROOT).stdout
    excerpt = [line.strip() for line in README.splitlines() if re.match(r"    \w+_[A-Z1]+ +\(", line)]
    assert len(excerpt) == 6
    for line in excerpt:
        assert line in shown, line


@pytest.mark.parametrize("group", [*GROUPS, "model", "size"])
def test_the_kinds_listed_are_there(group):
    [row] = [line for line in README.splitlines() if line.startswith(f"| `{group}=`")]
    listed = re.sub(r"\(.*?\)", "", row.split("|")[2]).split(",")
    assert {name.strip() for name in listed} == set(names(group))


def test_the_map_shows_every_file():
    for path in [*(ROOT / "model").rglob("*.py"), *(ROOT / "data").glob("*.py")]:
        assert path.stem.startswith("__") or path.name in README, f"{path.name} is missing from the README"
