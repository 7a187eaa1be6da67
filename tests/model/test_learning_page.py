"""model/README.md is true: its commands run; formulas, numbers and pictures are the code's."""

import doctest
import re
import shlex
from importlib import import_module
from operator import attrgetter

import pytest

from configs.compose import compose
from model.shapes import main as shapes
from tests.parts import ROOT

PAGE = (ROOT / "model/README.md").read_text()
SHELL = "".join(re.findall(r"```console\n(.*?)```", PAGE, re.DOTALL))
SESSIONS = SHELL.split("$ python -m model.shapes ")[1:]


@pytest.mark.parametrize("session", SESSIONS, ids=lambda text: text.partition("\n")[0])
def test_commands_print_what_is_shown(session, command):
    """All of a mask, and lines of a shape walk, in their order."""
    options, _, shown = session.partition("\n")
    printed = command(shapes, *shlex.split(options)).out
    if "--mask" in options:
        assert shown == printed
    for line in filter(None, shown.splitlines()):
        _, found, printed = printed.partition(line)
        assert found, line


def test_training_commands_compose():
    """That each preset trains is in test_golden.py."""
    for overrides in re.findall(r"`python train\.py (.*?)`", PAGE):
        assert compose(overrides.split()).model


def test_the_worked_example():
    """The numbers that Python would print."""
    assert ">>> " in PAGE
    text = PAGE.replace("```", "\n")
    tests = doctest.DocTestParser().get_doctest(text, {}, "model/README.md", None, 0)
    assert doctest.DocTestRunner().run(tests).failed == 0


def test_formulas_are_where_the_table_says():
    rows = re.findall(r"^\| .* \| (\w+)\.py \| (.*) \|$", PAGE, re.MULTILINE)
    functions = [(file, name) for file, cell in rows for name in re.findall(r"`([\w.]+)`", cell)]
    assert len(functions) > 12
    for file, name in functions:
        function = attrgetter(name)(import_module(f"model.{file}"))
        assert function.__module__ == f"model.{file}" and function.__qualname__ == name
