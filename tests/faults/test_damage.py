"""A damaged checkpoint is reported and the previous one used; a folder has one writer at a time."""

import json
import os
import random
import shutil
import signal
import time
from pathlib import Path

import pytest
import torch

from configs.errors import CheckpointError
from model.checkpoint.files import read_state, verify
from model.transformer import Decoder
from tests.faults.harness import (
    FILES,
    NEWEST,
    STEPS,
    child,
    copy_run,
    edit_tensors,
    equal,
    exit_code,
    overridden,
    reference,
    run_trials,
    train,
    verified_steps,
)
from tests.training.runs import rows


def flip_bit(data, draw):
    at = draw.randrange(8 * len(data))
    return data[: at // 8] + bytes([data[at // 8] ^ 1 << at % 8]) + data[at // 8 + 1 :]


def truncate(data, draw):
    return data[: draw.randrange(len(data))]


def zero_block(data, draw):
    """A block that the file system has lost reads as zeros."""
    begin = draw.randrange(len(data))
    end = min(len(data), begin + draw.choice((1, 64, 512, 4096)))
    return data[:begin] + bytes(end - begin) + data[end:]


def append(data, draw):
    return data + bytes(draw.randrange(1, 9))


def damage(seed, checkpoint):
    """The name of the damaged file, or None if the bytes stayed the same."""
    draw = random.Random(seed)
    name = draw.choice((*FILES, "manifest.json"))
    change = draw.choice((flip_bit, flip_bit, truncate, zero_block, append, "missing", "swapped"))
    path = checkpoint / name
    before = path.read_bytes()
    if change == "missing":
        path.unlink()
    elif change == "swapped":
        shutil.copyfile(checkpoint.with_name("step-00000003") / name, path)
    else:
        path.write_bytes(change(before, draw))
    return name if not path.exists() or path.read_bytes() != before else None


def test_every_damage_is_detected(folder):
    checkpoint, seen = folder / "checkpoints" / NEWEST, 0
    for seed in range(300):
        name = damage(seed, checkpoint)
        if name is None:
            continue
        with pytest.raises(CheckpointError) as error:
            verify(checkpoint)
            read_state(checkpoint)
        assert str(checkpoint) in str(error.value)
        assert name == "manifest.json" or name in str(error.value)
        shutil.copyfile(reference() / "checkpoints" / NEWEST / name, checkpoint / name)
        seen += 1
    assert seen >= 250


def goes_back(seed, cwd):
    folder = copy_run(cwd)
    if damage(seed, folder / "checkpoints" / NEWEST) is None:
        return
    code, output = train(cwd, overridden("resume=true"))
    assert code == 0, output
    assert NEWEST in output and "going back to step-00000003" in output
    assert "resuming runs/run from step 3" in output
    aside = folder / f"checkpoints/{NEWEST}.damaged"
    assert aside.is_dir(), "set aside, not deleted"
    shutil.rmtree(aside)
    equal(folder)


def test_the_previous_checkpoint_is_used(tmp_path):
    run_trials(goes_back, range(4), tmp_path)


@pytest.mark.faults
def test_the_previous_checkpoint_is_used_whatever_the_damage(tmp_path):
    run_trials(goes_back, range(4, 60), tmp_path)


def test_no_checkpoint_is_undamaged(folder, resume):
    for path in folder.glob("checkpoints/step-*/model.safetensors"):
        path.write_bytes(b"nothing")
    metrics = (folder / "metrics.jsonl").read_bytes()
    code, output = resume()
    assert code == 4 and "error: no checkpoint of runs/run is undamaged: " in output
    assert all(f"step-0000000{n}/model.safetensors is damaged" in output for n in (3, 4)), output
    assert (folder / "metrics.jsonl").read_bytes() == metrics, "nothing was touched"


def test_weights_that_are_nan_are_refused(folder, resume):
    checkpoint = folder / "checkpoints" / NEWEST
    edit_tensors(
        checkpoint, "model.safetensors", lambda named: {n: t * torch.nan for n, t in named.items()}
    )
    code, output = resume()
    assert code == 4 and "has values that are NaN or infinite" in output


def once_saved(spoil):
    """An act: in training steps after the first checkpoint, the model's hidden states go through spoil()."""

    def act():
        real = Decoder.hidden

        def hidden(model, *args, **rest):
            x = real(model, *args, **rest)
            return (
                spoil(x) if model.training and Path("runs/run/checkpoints/latest").exists() else x
            )

        Decoder.hidden = hidden

    return act


def test_one_writer(tmp_path):
    def pause(x):
        Path("ready").touch()
        signal.pause()

    pid = child(tmp_path, overridden(), once_saved(pause))
    until = time.monotonic() + 60
    while not (tmp_path / "ready").exists() and time.monotonic() < until:
        os.sched_yield()
    folder = tmp_path / "runs/run"
    before = (folder / "metrics.jsonl").read_bytes()
    try:
        began = time.perf_counter()
        code, output = train(tmp_path, overridden("resume=true"))
        took = time.perf_counter() - began
        owner = json.loads((folder / "owner.json").read_text())
        assert code == 8 and owner["pid"] == pid and took < 5, output
        assert (
            f"runs/run is in use by process {pid} on {owner['host']}, started {owner['start']}"
            in output
        )
        assert (folder / "metrics.jsonl").read_bytes() == before
    finally:
        os.kill(pid, signal.SIGKILL)
        assert exit_code(pid) == -signal.SIGKILL
    assert train(tmp_path, overridden("resume=true"))[0] == 0, "kill -9 unlocks the folder"
    equal(folder)


def test_a_nan_is_never_saved(tmp_path):
    """A NaN loss ends the run, with the last good checkpoint in place."""
    code, output = train(tmp_path, overridden(), once_saved(lambda x: x * torch.nan))
    folder = tmp_path / "runs/run"
    done = max(step for step, _ in rows(folder, "step", "loss"))
    assert code == 5 and f"error: step {done + 1}: the loss is " in output, output
    assert verified_steps(folder)[-1] == done < STEPS
    assert train(tmp_path, overridden("resume=true"))[0] == 0
    equal(folder)


def test_out_of_memory_is_one_sentence(tmp_path):
    def exhaust(x):
        raise torch.OutOfMemoryError("CUDA out of memory")

    code, output = train(tmp_path, overridden("eval.every=null"), once_saved(exhaust))
    assert (
        code == 6 and output.count("error: ") == 1 and "lower train.micro_batch_size" in output
    ), output
    assert verified_steps(tmp_path / "runs/run")


SETTINGS = [{"LC_ALL": "C"}, {"TZ": "Pacific/Kiritimati"}, {"TZ": "XXX+25"}, "umask"]


@pytest.mark.parametrize("setting", SETTINGS)
def test_time_zone_locale_and_umask_do_not_matter(tmp_path, setting):
    def act():
        if setting == "umask":
            os.umask(0o077)
        else:
            os.environ.update(setting)
            time.tzset()

    folder = tmp_path / "runs/run"
    code, output = train(tmp_path, overridden(), act)
    assert code == 0, output
    equal(folder)
    shutil.rmtree(folder / "checkpoints" / NEWEST)
    assert train(tmp_path, overridden("resume=true"), act)[0] == 0
    equal(folder)
