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
    STEPS,
    child,
    equal,
    exit_code,
    overridden,
    reference,
    run_trials,
    train,
    verified_steps,
)
from tests.faults.malice import rewritten
from tests.training.runs import rows

FILES = ("model.safetensors", "optimizer.safetensors", "state.json", "manifest.json")
NEWEST = "step-00000004"


def flipped(data, draw):
    at = draw.randrange(8 * len(data))
    return data[: at // 8] + bytes([data[at // 8] ^ 1 << at % 8]) + data[at // 8 + 1 :]


def cut_off(data, draw):
    return data[: draw.randrange(len(data))]


def hollow(data, draw):
    """A block that the file system has lost reads as zeros."""
    begin = draw.randrange(len(data))
    end = min(len(data), begin + draw.choice((1, 64, 512, 4096)))
    return data[:begin] + bytes(end - begin) + data[end:]


def longer(data, draw):
    return data + bytes(draw.randrange(1, 9))


def damaged(seed, place):
    """The name of the damaged file, or None if the bytes stayed the same."""
    draw = random.Random(seed)
    name = draw.choice(FILES)
    path, kind = place / name, draw.choice((flipped, flipped, cut_off, hollow, longer, "missing", "swapped"))
    before = path.read_bytes()
    if kind == "missing":
        path.unlink()
    elif kind == "swapped":
        other = place.with_name("step-00000003") / name
        path.write_bytes(other.read_bytes())
    else:
        path.write_bytes(kind(before, draw))
    return name if not path.exists() or path.read_bytes() != before else None


def test_every_damage_is_detected(tmp_path):
    seen = 0
    for seed in range(300):
        shutil.rmtree(tmp_path / "checkpoints", ignore_errors=True)
        shutil.copytree(reference() / "checkpoints", tmp_path / "checkpoints")
        place = tmp_path / "checkpoints" / NEWEST
        name = damaged(seed, place)
        if name is None:
            continue
        with pytest.raises(CheckpointError) as error:
            verify(place)
            read_state(place)
        assert str(place) in str(error.value) and (name == "manifest.json" or name in str(error.value))
        seen += 1
    assert seen >= 250


def copied(room):
    shutil.copytree(reference(), room / "runs/run")
    return room / "runs/run/checkpoints"


def goes_back(seed, room):
    place = copied(room)
    if damaged(seed, place / NEWEST) is None:
        return
    code, output = train(room, overridden("resume=true"))
    assert code == 0, output
    assert (
        f"{NEWEST}" in output
        and "going back to step-00000003" in output
        and "resuming runs/run from step 3" in output
    )
    assert place.joinpath(f"{NEWEST}.damaged").is_dir(), "set aside, not deleted"
    shutil.rmtree(place / f"{NEWEST}.damaged")
    equal(room / "runs/run")


def test_the_previous_checkpoint_is_used(tmp_path):
    run_trials(goes_back, range(4), tmp_path)


@pytest.mark.faults
def test_the_previous_checkpoint_is_used_whatever_the_damage(tmp_path):
    run_trials(goes_back, range(4, 60), tmp_path)


def test_no_checkpoint_is_undamaged(tmp_path):
    place = copied(tmp_path)
    for path in place.glob("step-*"):
        (path / "model.safetensors").write_bytes(b"nothing")
    metrics = (tmp_path / "runs/run/metrics.jsonl").read_bytes()
    code, output = train(tmp_path, overridden("resume=true"))
    assert code == 4 and "error: no checkpoint of runs/run is undamaged: " in output
    assert all(f"step-0000000{n}/model.safetensors is damaged" in output for n in (3, 4)), (
        "each with its reason"
    )
    assert (tmp_path / "runs/run/metrics.jsonl").read_bytes() == metrics, "nothing was touched"


def test_weights_that_are_nan_are_refused(tmp_path):
    place = copied(tmp_path) / NEWEST
    rewritten(place, lambda name, t: t * torch.nan if name == "embedding.table.weight" else t)
    code, output = train(tmp_path, overridden("resume=true"))
    assert code == 4 and "has values that are NaN or infinite" in output


def once_saved(spoil):
    """An act: in training steps after the first checkpoint, the model's hidden states go through spoil()."""

    def act():
        real = Decoder.hidden

        def hidden(model, *args, **rest):
            x = real(model, *args, **rest)
            return spoil(x) if model.training and Path("runs/run/checkpoints/latest").exists() else x

        Decoder.hidden = hidden

    return act


def paused(room):
    """A run that pauses in its second step until it is killed."""

    def pause(x):
        Path("ready").touch()
        signal.pause()

    pid = child(room, overridden(), once_saved(pause))
    until = time.monotonic() + 60
    while not (room / "ready").exists() and time.monotonic() < until:
        os.sched_yield()
    return pid


def test_one_writer(tmp_path):
    pid = paused(tmp_path)
    before = (tmp_path / "runs/run/metrics.jsonl").read_bytes()
    try:
        began = time.perf_counter()
        code, output = train(tmp_path, overridden("resume=true"))
        took = time.perf_counter() - began
        owner = json.loads((tmp_path / "runs/run/owner.json").read_text())
        assert code == 8 and owner["pid"] == pid and took < 5, output
        assert f"runs/run is in use by process {pid} on {owner['host']}, started {owner['start']}" in output
        assert (tmp_path / "runs/run/metrics.jsonl").read_bytes() == before
    finally:
        os.kill(pid, signal.SIGKILL)
        assert exit_code(pid) == -signal.SIGKILL
    code, output = train(tmp_path, overridden("resume=true"))
    assert code == 0, "kill -9 unlocks the folder"
    equal(tmp_path / "runs/run")


def test_a_nan_is_never_saved(tmp_path):
    """A NaN loss ends the run, with the last good checkpoint in place."""
    code, output = train(tmp_path, overridden(), once_saved(lambda x: x * torch.nan))
    folder = tmp_path / "runs/run"
    done = max(step for step, _ in rows(folder, "step", "loss"))
    assert code == 5 and f"error: step {done + 1}: the loss is " in output and "Traceback" not in output, (
        output
    )
    assert verified_steps(folder)[-1] == done < STEPS
    assert train(tmp_path, overridden("resume=true"))[0] == 0
    equal(folder)


def test_out_of_memory_is_one_sentence(tmp_path):
    def exhaust(x):
        raise torch.OutOfMemoryError("CUDA out of memory")

    code, output = train(tmp_path, overridden("eval.every=null"), once_saved(exhaust))
    assert code == 6 and output.count("error: ") == 1 and "lower train.micro_batch_size" in output, output
    assert verified_steps(tmp_path / "runs/run")


@pytest.mark.parametrize(
    "setting", [{"LC_ALL": "C"}, {"TZ": "Pacific/Kiritimati"}, {"TZ": "XXX+25"}, "umask"]
)
def test_time_zone_locale_and_umask_do_not_matter(tmp_path, setting):
    def act():
        if setting == "umask":
            os.umask(0o077)
        else:
            os.environ.update(setting)
            time.tzset()

    code, output = train(tmp_path, overridden(), act)
    assert code == 0, output
    equal(tmp_path / "runs/run")
    os.utime(tmp_path / f"runs/run/checkpoints/{NEWEST}", (0, 0))
    shutil.rmtree(tmp_path / f"runs/run/checkpoints/{NEWEST}")
    assert train(tmp_path, overridden("resume=true"), act)[0] == 0
    equal(tmp_path / "runs/run")
