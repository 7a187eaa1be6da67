"""The README and its pages are true: commands run, tables list every option, examples pass the tests."""

import io
import json
import os
import re
import runpy
import shlex
import shutil
import subprocess
import sys
import warnings
from importlib.util import find_spec
from pathlib import Path
from unittest.mock import patch

import pytest

from configs.parts import LOADED
from model.attention import ATTENTIONS
from model.feedforward import FFNS
from tests.parts import ARCHITECTURES, ROOT, names
from tests.test_house import FOLDERS, REGISTRIES

PAGES = [ROOT / folder / "README.md" for folder in ("", *FOLDERS, "model/hub")]
PAGES.append(ROOT / "training/finetuning.md")
README = "\n".join(page.read_text() for page in PAGES)
PYTHON_BLOCKS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
# each once, in the order of the pages
COMMANDS = list(dict.fromkeys(re.findall(r"^ {4,}(python .*?) *$", README, re.MULTILINE)))
TRAIN = [command for command in COMMANDS if "python train.py" in command]
HUB = [command for command in COMMANDS if "python -m model.hub" in command]
# in test_harness.py and test_serve.py
ELSEWHERE = [command for command in COMMANDS if "--tasks" in command or "--serve" in command]
OTHERS = [command for command in COMMANDS if command not in TRAIN + HUB + ELSEWHERE]
SMALL = {"size": "tiny", "tokenizer": "byte", "train.steps": 2, "train.batch_size": 2}
SMALL |= {"eval.every": "null", "eval.max_examples": 2, "log.every": 1}
TEXT = {"data": "text", "data.path": "README.md"}
PAIRS = {"data": "synthetic", "data.size": 200}
CHAT = {"data": "chat", "data.path": "chats.jsonl"}


def arguments(command):
    """([program, *options], {key: value} of the overrides)"""
    _, *args = shlex.split(command, comments=True)
    overrides = [arg for arg in args if re.match(r"[\w.@]+=", arg)]
    options = [arg for arg in args if arg not in overrides]
    return options, dict(override.split("=", 1) for override in overrides)


def small(command):
    """The command for a tiny model and a text of a few kilobytes."""
    options, overrides = arguments(command)
    if options[0] == "train.py" or options[:2] == ["-m", "data"]:
        data = TEXT
        if "data=chat" in command:
            data = CHAT
        elif "data.label" in command:
            data = {}
        elif re.search("synthetic|reverse|=pairs", command):
            data = PAIRS
        overrides |= SMALL | data
        if "plan.world" in overrides:
            overrides["plan.world"] = SMALL["train.batch_size"]
        if "init_from" in overrides:  # which brings model and tokenizer
            del overrides["size"], overrides["tokenizer"]
    return [*options, *(f"{key}={value}" for key, value in overrides.items())]


@patch.dict(ATTENTIONS)
@patch.dict(FFNS)
@patch.dict(LOADED)
@patch.dict(os.environ)
def execute(args):
    """`python *args` in this process; its exit code."""
    is_module = args[0] == "-m"
    target, *rest = args[1:] if is_module else args
    try:
        with warnings.catch_warnings(), patch.object(sys, "argv", [target, *rest]):
            warnings.filterwarnings("ignore", ".* found in sys.modules", RuntimeWarning)
            if is_module:
                runpy.run_module(target, run_name="__main__")
            else:
                runpy.run_path(str(ROOT / target), run_name="__main__")
    except SystemExit as end:
        return end.code or 0
    return 0


def write_parts(folder):
    """Those of configs/README.md, in files of the user's."""
    code = [block for block in PYTHON_BLOCKS if "ATTENTIONS[" in block or "FFNS[" in block]
    assert len(code) == 2
    [yaml] = re.findall(r"```yaml\n(# @package.*?)```", README, re.DOTALL)
    (folder / "my_parts.py").write_text("\n".join(code))
    shift = "# @package model.ffn\n# token shift\nkind: shift\nd_ff: 64\n"
    for path, text in (("attention/talking.yaml", yaml), ("ffn/shift.yaml", shift)):
        options = folder / "configs" / path
        options.parent.mkdir(parents=True)
        options.write_text(text)


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A folder in which every training command has run; the newest run is that of `python train.py`."""
    folder = tmp_path_factory.mktemp("home")
    shutil.copy(ROOT / "README.md", folder)
    rows = [{"prompt": f"{i} + {i}?", "completion": str(2 * i)} for i in range(50)]
    (folder / "chats.jsonl").write_text("\n".join(map(json.dumps, rows)))
    reviews = "".join(f"good {i},good\nbad {i},bad\n" for i in range(50))
    (folder / "reviews.csv").write_text(f"text,label\n{reviews}")
    write_parts(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        [block] = [block for block in PYTHON_BLOCKS if "packages.jsonl" in block]
        exec(block)
        for command in sorted(TRAIN, key=lambda command: command == "python train.py"):
            assert execute(small(command)) == 0, command
            if name := arguments(command)[1].get("name"):
                assert Path("runs", name, "checkpoints/step-00000002").is_dir()
        for run in re.findall(r"(?<!--to )\bruns/[\w-]+", "\n".join(COMMANDS)):
            if not Path(run).exists():
                shutil.copytree("runs/tiny", run)
    return folder


@pytest.mark.parametrize("command", OTHERS)
def test_commands_run(command, home, monkeypatch, capsys):
    monkeypatch.chdir(home)
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"def \n")))
    code = execute(small(command))
    out, err = capsys.readouterr()
    assert code == 0 and out, err
    if "model.shapes parts=" in command:
        assert "my_parts.py" in out


def test_import_and_export(home, monkeypatch):
    """In order, but without what the hub would have to send."""
    monkeypatch.chdir(home)
    for command in HUB:
        args = shlex.split(command)[1:]
        source = args[args.index("--from") + 1] if "--from" in args else ""
        if "gguf" in command and not find_spec("gguf"):
            continue
        if "/" not in source or Path(source).exists():
            assert execute(args) == 0, command
            assert Path(args[args.index("--to") + 1]).exists()


@pytest.mark.faults  # it takes long
def test_an_attention_of_your_own(tmp_path):
    """The files of the page, outside the checkout: the tests by kind find it."""
    write_parts(tmp_path)
    own = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    options = f"-n 0 -p no:cacheprovider --parts={tmp_path}/my_parts.py -k mine"
    files = "tests/model/test_grid.py tests/model/test_grid_in_use.py tests/data/test_objectives.py"
    command = [sys.executable, "-m", "pytest", *options.split(), *files.split()]
    done = subprocess.run(command, cwd=ROOT, env=own, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    n_passed = int(re.search(r"(\d+) passed", done.stdout)[1])
    assert n_passed > len(names("position")) * len(ARCHITECTURES)


def test_the_first_python_block_runs(home, monkeypatch, capsys):
    monkeypatch.chdir(home)
    exec(compile(PYTHON_BLOCKS[0], "README.md", "exec"), {})
    assert capsys.readouterr().out


@pytest.mark.parametrize("group", [*REGISTRIES, "model", "size", "experiment"])
def test_the_tables_list_every_option(group):
    [cell] = re.findall(rf"^\| `{group}=` \|(.*)\|$", README, re.MULTILINE)
    listed = re.sub(r"\(.*?\)|:.*", "", cell).split(",")
    assert {name.strip(" `") for name in listed} == set(names(group))


def test_links_lead_somewhere():
    for page in PAGES:
        for link in re.findall(r"\]\((?!https?:)([^)#]+\.\w+)\)", page.read_text()):
            assert (page.parent / link).exists(), f"{page}: {link}"
