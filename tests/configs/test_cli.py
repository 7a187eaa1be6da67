"""What every command prints, and the errors of its arguments."""

import ast
import io
import threading
from contextlib import redirect_stderr

import pytest

import data.__main__
import model.hub.__main__
import model.shapes
import sample
import training.compare
from configs.cli import print, run_command
from configs.compose import check_override
from model.generate.options import parse_options
from tests.test_house import FILES
from train import main, validate
from training.profile import announce
from training.sweep import launch

ESCAPES = "\x1b]0;title\x07 \x9b2J \r \x7f \u202eabc\u2066"
SPELLED = "\\x1b]0;title\\x07 \\x9b2J \\r \\x7f \\u202eabc\\u2066"


def run(command, *args):
    return launch(main, validate, args) if command == "train" else run_command(command.main, args)


def test_control_characters_are_spelled_out(capsys):
    print(f"a\té東\n{ESCAPES}", end="")
    assert capsys.readouterr().out == f"a\té東\n{SPELLED}"


@pytest.mark.parametrize("debug", [[], ["debug=true"]])
def test_an_error_is_one_line_of_limited_length(capsys, debug):
    def fail(args):
        raise ValueError(f"{ESCAPES}\n{'x' * 10**6} is wrong")

    assert run_command(fail, debug) == 2
    stderr = capsys.readouterr().err
    line = stderr.splitlines()[-1]
    assert line.startswith(f"error: {SPELLED}\\nxxx") and line.endswith("xxx is wrong")
    assert len(line) < 1100 and "\x1b" not in stderr and ("Traceback" in stderr) == bool(debug)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_whatever_prints_uses_this_print(path):
    nodes = list(ast.walk(ast.parse(path.read_text())))
    prints = any(isinstance(node, ast.Name) and node.id == "print" for node in nodes)
    imported = any(
        alias.name == "print" for n in nodes if isinstance(n, ast.ImportFrom) for alias in n.names
    )
    assert imported == prints or path.parts[-2:] == ("configs", "cli.py")


USER = "~no-such-user"
TEXT = ["data=text", f"data.path={__file__}", "size=tiny", "tokenizer=byte"]
PATHS = [
    ("train", "data=text", f"data.path={USER}/x"),
    ("train", *TEXT, f"data.cache={USER}"),
    ("train", f"init_from={USER}/x"),
    ("train", "data=table", "data.field=x", f"data.path={USER}/x"),
    ("train", "data=parallel", "model=bart", f"data.source={USER}/x", f"data.target={__file__}"),
    (sample, f"--run={USER}/x", "--prompt", "a"),
    (sample, "--file", f"{USER}/x"),
    (sample, "--prompt", "a", "--attention-map", f"{USER}/x.png"),
    (model.hub.__main__, "import", "--from", f"{USER}/x", "--to", "new"),
    (model.hub.__main__, "import", "--from", "x", "--to", f"{USER}/x"),
    (model.hub.__main__, "export", "--run", f"{USER}/x", "--to", "new"),
    (training.compare, f"{USER}/x"),
]


@pytest.mark.parametrize("command", PATHS, ids=lambda command: " ".join(command[1:])[:60])
def test_a_user_who_does_not_exist(command, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert run(*command) == 2
    assert f"cannot expand {USER} in {USER}" in capsys.readouterr().err and not list(
        tmp_path.glob("~*")
    )


LONG = [
    (3, "train", "data=text", f"data.path={'x' * 5000}"),
    (3, "train", *TEXT, f"data.cache={'x' * 5000}"),
    (2, "train", *TEXT, f"name={'x' * 300}"),
    (2, "train", f"init_from={'x' * 300}"),
    (2, "train", f"seed={'9' * 50_000}"),
    (2, "train", f"{'x' * 300}=1"),
    (2, "train", f"model.{'x' * 300}.y=1"),
    (4, sample, "--run", "x" * 300, "--prompt", "a"),
    (2, sample, "--file", "x" * 300),
    (2, sample, "--prompt", "a", "--seed", "9" * 50_000),
    (4, training.compare, "x" * 300),
]


@pytest.mark.parametrize("command", LONG, ids=lambda command: " ".join(map(str, command))[:40])
def test_a_long_name(command, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    code, *rest = command
    assert run(*rest) == code
    stderr = capsys.readouterr().err
    assert (
        stderr.count("\n") == 1
        and len(stderr) < 1100
        and "Errno" not in stderr
        and "hydra" not in stderr
    )


@pytest.mark.parametrize(
    "command", [training.compare, model.hub.__main__, data.__main__, model.shapes, sample]
)
def test_wrong_usage_is_one_sentence(command, capsys):
    assert run(command, "--steps", "5") == 2
    stderr = capsys.readouterr().err
    assert stderr.startswith("error: ") and stderr.count("\n") == 1 and "usage" not in stderr
    if command in (data.__main__, model.shapes):
        assert (
            "unknown option --steps; settings are written key=value, for example train.steps=5"
            in stderr
        )


def test_a_name_may_have_any_letters(capsys):
    assert run("train", *TEXT, "name=é東", "train.steps=1", "dry_run=true") == 0, (
        capsys.readouterr().err
    )
    assert check_override(f"data.path={'x' * 5000}") is None


def test_texts_are_utf8_in_any_locale():
    """An ASCII locale leaves bytes that Python could not decode."""
    texts = ["é", "a", "\udcff"]
    undecoded = [
        text.encode(errors="surrogateescape").decode("ascii", "surrogateescape") for text in texts
    ]
    args = [arg for text in undecoded for arg in ("--prompt", text)]
    assert parse_options(args).prompt == texts


def test_slow_work_is_announced():
    printed = threading.Event()

    class Stream(io.StringIO):
        def flush(self):
            printed.set()

    with redirect_stderr(Stream()) as stream, announce("building", seconds=0):
        assert printed.wait(60)
    assert stream.getvalue() == "building ...\n"
    with redirect_stderr(io.StringIO()) as stream, announce("building", seconds=60):
        pass
    timers = [thread for thread in threading.enumerate() if isinstance(thread, threading.Timer)]
    assert not stream.getvalue() and all(timer.finished.is_set() for timer in timers)
