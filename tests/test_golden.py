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

import train
from configs.compose import compose
from data.corpus import load_data
from model.precision import Precision
from model.transformer import build_model
from tests.parts import names
from training.distributed import World
from training.ema import EMA
from training.optimizer import build_optimizers, set_lr
from training.run import Run, TrainState
from training.schedule import RunLength, build_schedule
from training.step import LossModule, seed_step

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
@patch("training.muon.matmul_dtype", lambda device: torch.float32)
def losses(preset):
    """By the update of train.py, on one thread of a CPU in float32."""
    data = ["data=text", "data.path=text", "tokenizer=byte"]
    length = [f"train.steps={STEPS}", "train.batch_size=4"]
    config = compose([f"model={preset}", "size=tiny", *data, *length])
    loaders = load_data(config)
    model = build_model(config.model, loaders.tokenizer.vocab_size, config.seed)
    module = LossModule(model, config.loss)
    optimizers = build_optimizers(config.optimizer, model)
    precision = Precision(torch.device("cpu"), torch.float32, "for a test")
    world = World(0, 1, "none", precision, precision.scaler())
    length = RunLength(config.train, loaders.train)
    schedule = build_schedule(config.schedule, length.steps)
    state = TrainState(micro_batch_size=4)
    run = Run(config, loaders, world, module, optimizers, EMA(model, None), state)
    found = []
    for step in range(STEPS):
        state.step = step
        set_lr(optimizers, schedule(length.progress(state)))
        seed_step(config.seed, step, 0)
        batch = loaders.train.batch(step)
        result = train.update(run, module, batch, clock=0.0)
        found.append(result.losses["loss"])
    return found


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
