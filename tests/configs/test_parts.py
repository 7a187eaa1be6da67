"""Parts from outside: what a run remembers of the file, and files that are refused."""

from pathlib import Path
from unittest.mock import patch

import pytest

from configs.compose import compose
from configs.parts import LOADED
from model.checkpoint import load_run
from tests.parts import refused
from tests.training.runs import tensors
from training.optimizer import OPTIMIZERS

OWN = """
from pathlib import Path
import torch
from training.optimizer import OPTIMIZERS

class Momentum(torch.optim.Optimizer):
    def __init__(self, parameters, lr):
        super().__init__(parameters, {"lr": lr})

    def start_state(self, parameter):
        return {"sum": torch.zeros_like(parameter)}

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                self.state[p]["sum"].mul_(0.9).add_(p.grad)
                p.sub_(group["lr"] * self.state[p]["sum"])

OPTIMIZERS["own"] = lambda model, lr: [Momentum(model.parameters(), lr)]
"""
USE = ["parts=my own.py", "optimizer=own", "schedule=constant", "schedule.warmup=0"]
CHANGED = "warning: the code of parts has changed since runs/part was started\n"


def forget():
    """As a new process."""
    LOADED.clear()
    OPTIMIZERS.pop("own", None)


@pytest.fixture
def own(room):
    folder = Path("configs/optimizer")
    folder.mkdir(parents=True)
    (folder / "own.yaml").write_text("# @package optimizer\n# own\nkind: own\nlr: 0.1\n")
    Path("my own.py").write_text(OWN)
    with patch.dict(LOADED, clear=True), patch.dict(OPTIMIZERS):
        yield Path("my own.py")


def test_a_run_remembers_its_parts(own, start, capsys):
    start(*USE, "name=full")
    start(*USE, "train.steps=2", "name=part")
    resume = ["name=part", "resume=true", "train.steps=4"]
    forget()
    assert "trained with my own.py: add parts=my own.py to" in start(*resume, code=2).err
    with refused("--parts my own.py"):
        load_run("runs/part")
    assert not LOADED, "no stored config imports anything"
    assert "warning" not in start(*resume, USE[0]).err
    assert tensors("runs/part") == tensors("runs/full")

    forget()
    own.write_text(f"{OWN}# changed")
    assert start(*resume[:2], USE[0], "train.steps=5").err == CHANGED
    assert start(*resume, USE[0], "dry_run=true").err == ""
    load_run("runs/full")
    assert capsys.readouterr().err == CHANGED.replace("part was", "full was")


WRONG = {
    None: "parts is my own.py, and there is no such Python file",
    "\n1 / 0": "my own.py, line 2: ZeroDivisionError: division by zero",
    "\n\n1 +": "my own.py, line 3: SyntaxError: invalid syntax",
    OWN.replace('"own"', '"muon"'): "line 20: ValueError: 'muon' is the name of another kind",
    OWN.replace("start_state", "begin"): "the state of Momentum is not known: give it a meth",
    OWN.replace("model.parameters()", "[model.head.map.weight]"): "no optimizer has embeddin",
}


@pytest.mark.parametrize("text, sentence", WRONG.items())
def test_files_that_are_refused(own, start, text, sentence):
    own.unlink() if text is None else own.write_text(text)
    [error] = start(*USE, code=2).err.splitlines()
    assert sentence in error
    assert not Path("runs").exists() or not list(Path("runs").iterdir())


def test_an_error_in_them_shows_its_traceback(own, start):
    own.write_text(OWN.replace("group in self.param_groups", "group in range(-1).index(0)"))
    errors = start(*USE, code=2).err
    assert 'my own.py", line 15' in errors and "error: " in errors.splitlines()[-1]


def test_other_files_that_are_refused(own):
    with refused("parts is book.txt, and there is no such Python file"):
        compose(["parts=book.txt"])
    Path("configs/optimizer/muon.yaml").write_text("kind: own\n")
    with refused("configs/optimizer/muon.yaml has the name of one of ours"):
        compose([USE[0]])
