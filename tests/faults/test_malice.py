"""A run folder is untrusted data: it runs no code, names no path outside, claims no memory beyond its own."""

import json
import math
import os
import pickle
import random
import re
import resource
import shutil
import struct
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from configs.compose import compose
from configs.errors import CheckpointError
from model.checkpoint.files import newest_run, read_config, read_state, read_tokenizer, verify
from model.checkpoint.load import check_specs, iter_tensors, load_run
from model.checkpoint.save import DTYPES, model_tensors
from tests.faults.harness import overridden, reference, run_trials, train
from tests.faults.malice import rewritten, sealed
from tests.faults.test_damage import NEWEST, copied
from training.plan import check_parts

MARKER = "marker"


class Touch:
    def __reduce__(self):
        return os.system, (f"touch {MARKER}",)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A run, in a folder where a marker file would be noticed."""
    monkeypatch.chdir(tmp_path)
    yield copied(tmp_path).parent
    assert not list(tmp_path.rglob(MARKER)), "code has run"
    assert not (tmp_path.parent / "outside").exists()


def newest(folder):
    return folder / "checkpoints" / NEWEST


def refused(folder, sentence):
    with pytest.raises(CheckpointError, match=sentence):
        load_run(folder)


@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.safetensors"])
def test_a_pickle_is_not_loaded(folder, name):
    (newest(folder) / name).write_bytes(pickle.dumps(Touch()))
    sealed(newest(folder))
    code, output = train(Path.cwd(), overridden("resume=true"))
    assert code == 4 and "Traceback" not in output and f"{name} cannot be read" in output


def test_names_that_lead_outside(folder):
    manifest = json.loads((newest(folder) / "manifest.json").read_text())
    manifest["../../../outside"] = manifest["state.json"]
    (newest(folder) / "manifest.json").write_text(json.dumps(manifest))
    refused(folder, "does not list the files of a checkpoint")


@pytest.mark.parametrize("pointer", ["../../elsewhere", "/etc", "step-1", "", "step-00000004/..", "x" * 9999])
def test_pointers_that_lead_outside(folder, pointer):
    (folder / "checkpoints/latest").write_text(pointer)
    refused(folder, "latest is '.*, not the name of a checkpoint; remove it")


@pytest.mark.parametrize("name", ["model.safetensors", "state.json", "manifest.json"])
@pytest.mark.parametrize("kind", ["link", "pipe", "folder"])
def test_only_plain_files(folder, name, kind):
    path = newest(folder) / name
    path.rename(folder / "moved")
    if kind == "link":
        path.symlink_to(folder / "moved")
    elif kind == "pipe":
        os.mkfifo(path)  # opening it would block for ever
    else:
        path.mkdir()
    refused(folder, "not a regular file|cannot be read")


def test_without_a_pointer_the_latest_is_the_newest(folder):
    older = folder.with_name("older")
    shutil.copytree(folder, older)
    (folder / "checkpoints/latest").unlink()
    assert load_run(folder).step == 4
    os.utime(older / "checkpoints", (0, 0))
    assert newest_run(folder.parent) == folder


@pytest.mark.parametrize("which", ["²", "٤", "9" * 5000, "-4", "4.0"])
def test_a_step_is_a_number(folder, which):
    with pytest.raises(ValueError, match="choose latest, best or a step"):
        load_run(folder, which)


def test_a_damaged_checkpoint_names_the_undamaged_ones(folder):
    (newest(folder) / "model.safetensors").write_bytes(b"x")
    refused(folder, "model.safetensors is damaged: .*; undamaged: step 3$")
    (folder / "checkpoints/step-00000003/state.json").unlink()
    refused(folder, "; no other is undamaged$")


def test_a_link_is_not_a_checkpoint(folder):
    newest(folder).rename(folder / "elsewhere")
    newest(folder).symlink_to(folder / "elsewhere")
    refused(folder, f"{NEWEST} is a link or not a regular file")


def test_a_header_that_claims_more_than_there_is(folder):
    header = {"a": {"dtype": "F32", "shape": [1 << 40], "data_offsets": [0, 4 << 40]}}
    text = json.dumps(header).encode()
    for data in (
        struct.pack("<Q", len(text)) + text,
        struct.pack("<Q", 1 << 62) + text,
        struct.pack("<Q", len(text)) + text + bytes(64),
        b"",
        b"\xff" * 7,
    ):
        (newest(folder) / "model.safetensors").write_bytes(data)
        sealed(newest(folder))
        refused(folder, "cannot be read")


def test_a_model_larger_than_its_file(folder):
    """Refused before anything is allocated: these weights would take terabytes."""
    config = (folder / "config.yaml").read_text().replace("d_model: 16", "d_model: 1048576")
    (folder / "config.yaml").write_text(config)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    refused(folder, "and the model of config.yaml has")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000


@pytest.mark.parametrize("width", [10**9, 10**30])
def test_a_model_larger_than_anything(folder, width):
    config = (folder / "config.yaml").read_text().replace("d_model: 16", f"d_model: {width}")
    (folder / "config.yaml").write_text(config)
    refused(folder, "config.yaml")
    code, output = train(Path.cwd(), ["name=run", "resume=true"])
    assert code in (4, 6) and output.count("error: ") == 1 and "Traceback" not in output, output


def test_tensors_that_do_not_belong(folder):
    place = newest(folder)
    rewritten(place, lambda name, tensor: tensor[..., :1].clone())
    refused(folder, "and the model of config.yaml has")
    save_file({"_orig_mod.a": torch.ones(2)}, place / "model.safetensors")
    sealed(place)
    refused(folder, "'_orig_mod.a' is")


KINDS = [torch.float64, torch.float16, torch.int64, torch.int8, torch.uint8, torch.bool, torch.complex64]
KINDS += [torch.float8_e4m3fn]


@pytest.mark.parametrize("dtype", KINDS, ids=str)
def test_other_dtypes(folder, dtype):
    """Nothing is converted to float32, neither on resume nor for sampling."""
    for name, whose in (("optimizer", "optimizer"), ("model", "model")):
        rewritten(newest(folder), lambda _, tensor: tensor.to(dtype), f"{name}.safetensors")
        code, output = train(Path.cwd(), overridden("resume=true", "train.steps=6"))
        assert code == 4 and "Traceback" not in output, output
        assert (
            f" is {DTYPES.get(dtype, '')}" in output and f"and the {whose} of config.yaml has F32" in output
        )
    refused(folder, "and the model of config.yaml has F32")


def bare(tensors):
    return {name: torch.tensor(1.0) for name in tensors}


def stretched(tensors):
    return {name: t.expand(9).clone() if name.endswith(".step") else t for name, t in tensors.items()}


def renamed(tensors):
    return {name.replace("momentum", "elan").replace("exp_", "ex_"): t for name, t in tensors.items()}


def fewer(tensors):
    return {name: t for name, t in tensors.items() if not name.endswith(".step")}


def more(tensors):
    return tensors | {"nothing.exp_avg": torch.tensor(1.0)}


def none(tensors):
    return {}


@pytest.mark.parametrize("change", [bare, stretched, renamed, fewer, more, none])
def test_optimizer_state_must_fit(folder, change):
    """By name, shape and dtype: a missing tensor would be momentum lost, a wrong one would crash the step."""
    path = newest(folder) / "optimizer.safetensors"
    save_file(change(load_file(path)), path)
    sealed(newest(folder))
    code, output = train(Path.cwd(), overridden("resume=true", "train.steps=6"))
    assert code == 4 and output.count("error: ") == 1 and "Traceback" not in output, output
    assert re.search(
        r"optimizer.safetensors: '[\w.]+' is .* and the optimizer of config.yaml has ", output
    ), output


SCALER = torch.amp.GradScaler("cpu").state_dict()
STATES = [
    ("format", 9, "has format 9 and this version reads 2; continue the run with the version that wrote it"),
    ("format", "2", "has format '2'"),
    ("format", 1, "has format 1 and this version reads 2"),
    ("step", 9, "is of step 9; it belongs to another checkpoint"),
    ("step", "4", "step is '4'; expected an integer from 0 to"),
    ("step", True, "step is True"),
    ("best_val_loss", None, "best_val_loss is None"),
    ("best_val_loss", math.nan, "best_val_loss is nan"),
    ("skipped_steps", -5, "skipped_steps is -5"),
    ("total_steps", -3, "total_steps is -3"),
    ("evals_since_best", 10**40, "evals_since_best is 1000"),
    ("last_eval_step", -2, "last_eval_step is -2"),
    ("stop_criteria", 4, "stop_criteria is 4"),
    ("best", 1.0, "unknown setting best"),
    ("micro_batch_size", [], "micro_batch_size is"),
    ("scaler", "x", "scaler is 'x'"),
    ("dataset_key", None, "dataset_key is None"),
    ("scaler", {"x": 1}, "unknown setting scaler.x"),
    ("scaler", SCALER | {"scale": "a"}, "scale is 'a'"),
    ("scaler", SCALER | {"scale": 0.0}, "scale is 0.0"),
    ("scaler", SCALER | {"scale": math.nan}, "scale is nan"),
    ("scaler", SCALER | {"scale": math.inf}, "scale is inf"),
    ("scaler", SCALER | {"growth_interval": 0}, "growth_interval is 0"),
    ("scaler", SCALER | {"_growth_tracker": -1}, "_growth_tracker is -1"),
]


@pytest.mark.parametrize(("key", "value", "sentence"), STATES)
def test_bad_states(folder, key, value, sentence):
    state = json.loads((newest(folder) / "state.json").read_text()) | {key: value}
    (newest(folder) / "state.json").write_text(json.dumps(state))
    sealed(newest(folder))
    with pytest.raises(CheckpointError, match=sentence):
        read_state(newest(folder))


BOMB = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{chr(98 + n)}: &{chr(98 + n)} [{','.join([f'*{chr(97 + n)}'] * 9)}]\n" for n in range(9)
)
CONFIGS = {
    "empty": b"",
    "a list": b"- a\n- b\n",
    "tabs": b"model:\n\tkind: x\n",
    "nothing": b"a\0b",
    "not UTF-8": b"model: {kind: caf\xe9}\n",
    "code": b"model: !!python/object/apply:os.system ['touch marker']\n",
    "bomb": BOMB.encode(),
    "deep": b"[" * 5000,
    "large": b"a: 1\n" * 300_000,
    "reference": b"overrides: []\nmodel: {kind: '${oc.env:HOME}'}\n",
    "date": b"overrides: []\nmodel: {}\nday: 2001-01-01\n",
    "null": b"overrides: []\nmodel: {}\nnull: 1\n",
    "target": b"overrides: []\nmodel: {kind: decoder, _target_: os.system}\n",
}


@pytest.mark.parametrize("what", CONFIGS)
def test_bad_configs(folder, what):
    (folder / "config.yaml").write_bytes(CONFIGS[what])
    refused(folder, "config.yaml")
    code, output = train(Path.cwd(), overridden("resume=true"))
    assert code == 4 and "Traceback" not in output and output.count("error: ") == 1


TOKENIZERS = {
    "code": {"kind": "bpe", "pattern": "(?{system})", "ranks": [], "specials": {}},
    "huge": {"kind": "byte", "specials": {"end": 1 << 40}},
    "name": {"kind": "byte", "specials": {"end": 256, "../x": 257}},
    "kind": {"kind": "os.system", "specials": {"end": 256}},
    "none": None,
}


@pytest.mark.parametrize("what", TOKENIZERS)
def test_bad_tokenizers(folder, what):
    (folder / "tokenizer.json").write_text(json.dumps(TOKENIZERS[what]))
    refused(folder, "tokenizer.json")


def mutated(data, draw):
    kind = draw.randrange(4)
    at = draw.randrange(len(data))
    if kind == 0:
        return data[:at] + bytes([draw.randrange(256)]) + data[at + 1 :]
    if kind == 1:
        return data[:at] + data[at + draw.randrange(1, 20) :]
    if kind == 2:
        return (
            data[:at]
            + draw.choice((b"9" * 30, b"[" * 50, b"null", b"-1", b'"', b"{}", b"1e999", b"\0"))
            + data[at:]
        )
    return data[:at] + data[draw.randrange(len(data)) :]


def some_files(first, tmp_path, n=100):
    """Mutated manifests, states and headers raise nothing but CheckpointError."""
    place = reference() / "checkpoints" / NEWEST
    manifest, state = ((place / name).read_bytes() for name in ("manifest.json", "state.json"))
    model = (place / "model.safetensors").read_bytes()
    header = 8 + int.from_bytes(model[:8], "little")
    target = tmp_path / NEWEST
    target.mkdir()
    for name in ("model.safetensors", "optimizer.safetensors"):
        (target / name).write_bytes((place / name).read_bytes())
    mine, refusals = load_run(reference()).model, 0
    for seed in range(first, first + n):
        draw, kind = random.Random(seed), seed % 3
        (target / "manifest.json").write_bytes(mutated(manifest, draw) if kind == 0 else manifest)
        (target / "state.json").write_bytes(mutated(state, draw) if kind == 1 else state)
        head = mutated(model[:header], draw) if kind == 2 else model[:header]
        (target / "model.safetensors").write_bytes(head + model[header:])
        try:
            if kind == 0:
                verify(target)
            elif kind == 1:
                read_state(target)
            else:
                check_specs(target / "model.safetensors", model_tensors(mine), "model")
                dict(iter_tensors(target / "model.safetensors"))
        except CheckpointError:
            refusals += 1
    assert refusals > 0.8 * n


def some_lines(first, room, n=10):
    """One random override or ten: a config, or an error of one line."""
    for seed in range(first, first + n):
        draw = random.Random(seed)
        line = []
        for _ in range(seed % 2 * 9 + 1):
            word = draw.choice(KEYS) + draw.choice(("=", "=", "=", "", "==")) + draw.choice(VALUES)
            line.append(word + draw.choice(("", "x", "1", ",", "]")))
        try:
            config = compose(line)
            if seed % 4 == 0:
                check_parts(config)
        except (ValueError, MemoryError) as error:
            assert "\n" not in str(error), line


def some_texts(first, tmp_path, n=50):
    """Mutated config and tokenizer."""
    for seed in range(first, first + n):
        draw = random.Random(seed)
        for name, read in (("config.yaml", read_config), ("tokenizer.json", read_tokenizer)):
            (tmp_path / name).write_bytes(mutated((reference() / name).read_bytes(), draw))
            with suppress(CheckpointError):
                read(tmp_path)


def test_fuzz_smoke(tmp_path):
    some_files(0, tmp_path, 200)
    some_texts(0, tmp_path, 20)
    some_lines(0, tmp_path)


@pytest.mark.faults
def test_ten_thousand_mutated_files(tmp_path):
    run_trials(some_files, range(0, 10_000, 100), tmp_path)


@pytest.mark.faults
def test_ten_thousand_overrides(tmp_path):
    run_trials(some_lines, range(0, 2000, 10), tmp_path)


@pytest.mark.faults
def test_a_thousand_mutated_texts(tmp_path):
    run_trials(some_texts, range(0, 1000, 50), tmp_path)


KEYS = ["train.steps", "seed", "model.d_model", "optimizer.lr", "debug", "name", "+new", "~seed", "++a.b"]
KEYS += [
    "model",
    "attention",
    "data.path",
    "train",
    "eval.every",
    "compile",
    "schedule",
    "resume_allow",
    "",
    "=",
]
VALUES = [
    "1",
    "-1",
    "null",
    "nan",
    "[1,2]",
    "{a: 1}",
    "'",
    '"',
    "${x}",
    "a,b",
    "1e400",
    "true",
    "",
    " ",
    "\0",
]
VALUES += ["[", "choice(1,2)", "range(1,3)", "9" * 40, "../x", "x=y", "\\", "int(3)", "sort(2,1)", "é", "()"]
VALUES += ["!!python/name:os", "1e308", "1000000000", "-1e30", "2147483648"]
SIZES = [
    "d_model",
    "n_heads",
    "context_length",
    "attention.head_dim",
    "attention.v_head_dim",
    "attention.sliding_window",
]
SIZES += ["attention.logit_softcap", "attention.scale", "ffn.expansion", "ffn.multiple_of", "ffn.d_ff"]
SIZES += [
    "head.logit_softcap",
    "position.rope_theta",
    "position.rotary_fraction",
    "embedding.type_vocab_size",
    "dropout",
]
KEYS += [f"model.{size}" for size in SIZES] + ["optimizer.eps", "schedule.warmup", "size", "ffn", "position"]
