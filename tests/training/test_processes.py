"""One run, alone, with DDP or sharded: the same numbers, and checkpoints that all can resume."""

import subprocess

import pytest
import torch
from safetensors.torch import load_file

from tests.parts import thin
from tests.training.runs import TORCHRUN, rows, with_usual
from tests.training.test_classify import write

RUN = """
    train.batch_size=8 eval.max_examples=9 eval.every=2 log.every=1 seed=3
    checkpoint.every=2 checkpoint.keep=9 schedule=constant train.steps=6
"""
GPT2 = "model=gpt2 optimizer=adamw train.micro_batch_size=3"
GPT2 += " data.document_mask=true data.split_on=line"
MODERN = "model=modern ffn=moe ema.decay=0.9 train.micro_batch_size=4"
LORA = "init_from=runs/base adapt=lora ema.decay=0.9 train.micro_batch_size=3"
CLASSES = "model=bert optimizer=adamw data=table data.path=labels.jsonl data.label=label"
CASES = [  # the last is a tolerance: Muon amplifies rounding
    ("ddp", GPT2, 1e-5),
    ("fsdp", MODERN, 1e-2),
    ("fsdp", LORA, 1e-5),
    ("ddp", LORA, 1e-5),
    ("fsdp", GPT2, 1e-5),
    ("ddp", MODERN, 1e-2),
    ("fsdp", CLASSES, 1e-5),
]


def numbers(folder):
    names = ("loss", "balance", "grad_norm", "val_loss")
    return [value for name in names for row in rows(folder, "step", name) for value in row]


def weights(folder, step):
    """All in one vector."""
    tensors = load_file(f"{folder}/checkpoints/step-{step:08}/model.safetensors")
    return torch.cat([tensors[name].flatten() for name in sorted(tensors)])


@pytest.mark.parametrize("parallel, overrides, tolerance", thin(CASES, CASES[:2]))
def test_processes_split_a_run(start, parallel, overrides, tolerance):
    write(["a", "b", "c"])
    usual = with_usual(f"{overrides} {RUN}".split())
    if "init_from" in overrides:
        start("name=base", "model=gpt2", "seed=1")
    start.plainly(*usual, "name=alone")
    command = [*TORCHRUN, *usual, "name=two", "train.steps=4", f"parallel={parallel}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    expected = weights("runs/alone", step=2)
    assert (weights("runs/two", step=2) - expected).norm() <= tolerance * expected.norm()
    # one process continues what two have shared
    more = ["name=two", "parallel=auto", "resume=true", "train.steps=6"]
    assert "resuming from step 4\n" in start(*more).out
    assert numbers("runs/two") == pytest.approx(numbers("runs/alone"), rel=tolerance)
    assert rows("runs/two", "confusion") == rows("runs/alone", "confusion")


@pytest.mark.quick
def test_a_batch_that_two_processes_cannot_split(start, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "4")
    errors = start("train.batch_size=6", code=2).err
    assert "train.batch_size is 6; expected a multiple of the 4 processes\n" in errors
    assert "torchrun started 4 processes; choose ddp" in start("parallel=none", code=2).err
