"""The losses of five steps of each preset, which no change of the code may move unnoticed.

python -m tests.test_golden --rewrite
"""

import json
import random
import sys
import tempfile
from contextlib import chdir
from pathlib import Path
from unittest.mock import patch

import pytest
import torch

from tests.benchmarks.options import Run
from tests.parts import names

GOLDEN = Path(__file__).with_name("golden.json")
STEPS = 5


def write_text(folder):
    """40 files of random words."""
    draw = random.Random(0)
    letters = "abcdefghijklmnopqrstuvwxyz"
    words = ["".join(draw.choices(letters, k=draw.randint(1, 9))) for _ in range(300)]
    folder.mkdir()
    for number in range(40):
        text = " ".join(draw.choices(words, k=600))
        (folder / f"{number:02}.txt").write_text(f"{text}\n", encoding="utf-8")


# where the CPU is fast in bfloat16, Muon would use it
@patch("training.muon.muon_dtype", lambda device: torch.float32)
def losses(preset):
    """On one thread of a CPU in float32."""
    data = ["data=text", "data.path=text", "tokenizer=byte", "device=cpu", "precision=fp32"]
    length = [f"train.steps={STEPS}", "train.batch_size=4"]
    run = Run([f"model={preset}", "size=tiny", *data, *length])
    return [loss for loss, _ in run.train(STEPS)]


@pytest.fixture(scope="module")
def room(tmp_path_factory):
    folder = tmp_path_factory.mktemp("golden")
    write_text(folder / "text")
    return folder


@pytest.mark.quick
@pytest.mark.parametrize("preset", names("model"))
def test_the_losses_are_those_of_before(room, preset):
    with chdir(room):
        found = losses(preset)
    assert found == pytest.approx(json.loads(GOLDEN.read_text())[preset], rel=1e-5)


def rewrite():
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder, chdir(folder):
        write_text(Path("text"))
        found = {preset: losses(preset) for preset in names("model")}
    GOLDEN.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__" and "--rewrite" in sys.argv:
    rewrite()
