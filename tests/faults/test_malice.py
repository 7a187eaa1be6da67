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
from itertools import pairwise

import pytest
import torch
import yaml
from safetensors.torch import load_file

from configs.compose import compose
from configs.errors import CheckpointError
from model.checkpoint import files, load
from model.checkpoint.files import (
    newest_run,
    read_config,
    read_state,
    read_tokenizer,
    step_dir,
    step_of,
    verify,
)
from model.checkpoint.load import check_specs, iter_tensors, load_run
from model.checkpoint.save import model_tensors
from tests.faults.commands import attempt
from tests.faults.harness import (
    NEWEST,
    copy_run,
    edit_tensors,
    overridden,
    reference,
    run_trials,
    train,
    write_manifest,
)
from training.plan import check_parts


class Touch:
    def __reduce__(self):
        return os.system, ("touch marker",)


@pytest.fixture
def folder(folder, tmp_path):
    """A run, in a folder where a marker file would be noticed."""
    yield folder
    assert not list(tmp_path.rglob("marker")), "code has run"
    assert not (tmp_path.parent / "outside").exists()


@pytest.fixture
def checkpoint(folder):
    return folder / "checkpoints" / NEWEST


def refused(folder, sentence):
    with pytest.raises(CheckpointError, match=sentence):
        load_run(folder)


@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.safetensors"])
def test_a_pickle_is_not_loaded(tmp_path, checkpoint, name):
    (checkpoint / name).write_bytes(pickle.dumps(Touch()))
    write_manifest(checkpoint)
    code, output = train(tmp_path, overridden("resume=true"))
    assert code == 4 and "Traceback" not in output and f"{name} cannot be read" in output


def test_names_that_lead_outside(folder, checkpoint):
    manifest = json.loads((checkpoint / "manifest.json").read_text())
    manifest["../../../outside"] = manifest["state.json"]
    (checkpoint / "manifest.json").write_text(json.dumps(manifest))
    refused(folder, "does not list the files of a checkpoint")


@pytest.mark.parametrize(
    "pointer", ["../../elsewhere", "/etc", "step-1", "", "step-00000004/..", "x" * 9999]
)
def test_pointers_that_lead_outside(folder, pointer):
    (folder / "checkpoints/latest").write_text(pointer)
    refused(folder, "latest is '.*, not the name of a checkpoint; remove it")


@pytest.mark.parametrize("name", ["model.safetensors", "state.json", "manifest.json"])
def test_a_folder_is_not_a_file(folder, checkpoint, name):
    (checkpoint / name).unlink()
    (checkpoint / name).mkdir()
    refused(folder, f"{name} cannot be read")


def test_without_a_pointer_the_latest_is_the_newest(folder):
    older = shutil.copytree(folder, folder.with_name("older"))
    (folder / "checkpoints/latest").unlink()
    assert load_run(folder).step == 4
    os.utime(older / "checkpoints", (0, 0))
    assert newest_run(folder.parent) == folder


@pytest.mark.parametrize("which", ["²", "٤", "9" * 5000, "-4", "4.0"])
def test_a_step_is_a_number(folder, which):
    with pytest.raises(ValueError, match="choose latest, best or a step"):
        load_run(folder, which)


@pytest.mark.parametrize(("module", "function"), [(files, "verify"), (load, "check_specs")])
@pytest.mark.parametrize("times", [1, 99])
def test_a_checkpoint_that_a_run_at_work_deletes_while_it_is_read(
    folder, monkeypatch, module, function, times
):
    """The next one is read instead; where they are deleted as fast as they are read, that ends."""
    real, reads = getattr(module, function), []
    shutil.rmtree(folder / "checkpoints/step-00000003")

    def prune_first(path, *args):
        reads.append(path)
        if len(reads) <= times:
            checkpoint = path if path.is_dir() else path.parent
            newer = step_dir(step_of(checkpoint) + 1)
            shutil.copytree(checkpoint, checkpoint.with_name(newer))
            (folder / "checkpoints/latest").write_text(newer)
            shutil.rmtree(checkpoint)
        return real(path, *args)

    monkeypatch.setattr(module, function, prune_first)
    if times == 1:
        assert load_run(folder).step == 5
    else:
        refused(folder, "cannot be read .[Nn]o such file or directory")
        assert len(reads) < 60


def test_a_damaged_checkpoint_names_the_undamaged_ones(folder, checkpoint):
    (checkpoint / "model.safetensors").write_bytes(b"x")
    refused(folder, "model.safetensors is damaged: .*; undamaged: step 3$")
    (folder / "checkpoints/step-00000003/state.json").unlink()
    refused(folder, "; no other is undamaged$")


HEADER = json.dumps(
    {"a": {"dtype": "F32", "shape": [1 << 40], "data_offsets": [0, 4 << 40]}}
).encode()
LENGTH = struct.pack("<Q", len(HEADER))
TOO_LONG = struct.pack("<Q", 1 << 62) + HEADER
HEADERS = [LENGTH + HEADER, LENGTH + HEADER + bytes(64), TOO_LONG, b"", b"\xff" * 7]


@pytest.mark.parametrize("data", HEADERS)
def test_a_header_that_claims_more_than_there_is(folder, checkpoint, data):
    (checkpoint / "model.safetensors").write_bytes(data)
    write_manifest(checkpoint)
    refused(folder, "cannot be read")


@pytest.mark.parametrize("width", [2**20, 10**9, 10**30])
def test_a_model_larger_than_its_file(folder, resume, width):
    """Refused before anything is allocated: these weights would take terabytes."""
    config = (folder / "config.yaml").read_text().replace("d_model: 16", f"d_model: {width}")
    (folder / "config.yaml").write_text(config)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    refused(folder, "config.yaml")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000
    code, output = resume()
    assert code in (4, 6) and output.count("error: ") == 1 and "Traceback" not in output, output


EDITS = {
    "a dimension more": lambda tensors: {
        n: t.expand(2, *t.shape).clone() for n, t in tensors.items()
    },
    "no dimension": lambda tensors: {n: t.sum() for n, t in tensors.items()},
    "float64": lambda tensors: {n: t.double() for n, t in tensors.items()},
    "other names": lambda tensors: {f"_orig_mod.{n}": t for n, t in tensors.items()},
    "one less": lambda tensors: dict(sorted(tensors.items())[:-1]),
    "one more": lambda tensors: tensors | {"another.exp_avg": torch.tensor(1.0)},
    "none": lambda tensors: {},
}


@pytest.mark.parametrize("owner", ["model", "optimizer"])
@pytest.mark.parametrize("edit", EDITS)
def test_tensors_must_fit(checkpoint, resume, owner, edit):
    """By name, shape and dtype: a missing tensor would be momentum lost, a wrong one would crash the step."""
    edit_tensors(checkpoint, f"{owner}.safetensors", EDITS[edit])
    code, output = resume("train.steps=6")
    assert code == 4 and output.count("error: ") == 1 and "Traceback" not in output, output
    sentence = rf"{owner}.safetensors: '[\w.]+' is .* and the {owner} of config.yaml has "
    assert re.search(sentence, output), output


NAMES = [
    "float64",
    "float16",
    "bfloat16",
    "float8_e4m3fn",
    "int64",
    "int8",
    "uint8",
    "bool",
    "complex64",
]


@pytest.mark.parametrize("dtype", NAMES)
def test_other_dtypes(folder, checkpoint, dtype):
    """Nothing is converted to float32, neither on resume nor for sampling."""
    kind = getattr(torch, dtype)
    for owner in ("optimizer", "model"):
        path = checkpoint / f"{owner}.safetensors"
        expected = load_file(path)
        edit_tensors(
            checkpoint, path.name, lambda tensors: {n: t.to(kind) for n, t in tensors.items()}
        )
        with pytest.raises(CheckpointError, match=f" is .* and the {owner} of config.yaml has F32"):
            check_specs(path, expected, owner)
    refused(folder, "and the model of config.yaml has F32")


SCALER = torch.amp.GradScaler("cpu").state_dict()
STATES = [
    (
        "format",
        9,
        "has format 9 and this version reads 2; continue the run with the version that wrote it",
    ),
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
def test_bad_states(checkpoint, key, value, sentence):
    state = json.loads((checkpoint / "state.json").read_text()) | {key: value}
    (checkpoint / "state.json").write_text(json.dumps(state))
    with pytest.raises(CheckpointError, match=sentence):
        read_state(checkpoint)


LEVELS = [
    f"{name}: &{name} [{','.join([f'*{before}'] * 9)}]" for before, name in pairwise("abcdefghij")
]
CONFIGS = {
    "empty": b"",
    "a list": b"- a\n- b\n",
    "tabs": b"model:\n\tkind: x\n",
    "nothing": b"a\0b",
    "not UTF-8": b"model: {kind: caf\xe9}\n",
    "code": b"model: !!python/object/apply:os.system ['touch marker']\n",
    "bomb": "\n".join(["a: &a [x,x,x,x,x,x,x,x,x]", *LEVELS]).encode(),
    "deep": b"[" * 5000,
    "large": b"a: 1\n" * 300_000,
    "reference": b"overrides: []\nmodel: {kind: '${oc.env:HOME}'}\n",
    "date": b"overrides: []\nmodel: {}\nday: 2001-01-01\n",
    "null": b"overrides: []\nmodel: {}\nnull: 1\n",
    "target": b"overrides: []\nmodel: {kind: decoder, _target_: os.system}\n",
}


@pytest.mark.parametrize("what", CONFIGS)
def test_bad_configs(folder, resume, what):
    (folder / "config.yaml").write_bytes(CONFIGS[what])
    refused(folder, "config.yaml")
    code, output = resume()
    assert code == 4 and "Traceback" not in output and output.count("error: ") == 1


@pytest.mark.parametrize(
    "value", ["NaN", "Infinity", "-Infinity", "1e308", "1" + "0" * 400, "true"]
)
def test_any_time_may_be_logged(folder, resume, value):
    with open(folder / "metrics.jsonl", "a") as file:
        file.write(f'{{"step": 3, "loss": 1.0, "seconds": {value}}}\n')
    code, output = resume("train.steps=5", "log.every=1")
    assert code == 0 and "Traceback" not in output and "elapsed 0:0" in output, output


JUNK = (b"9" * 30, b"[" * 50, b"null", b"-1", b'"', b"{}", b"1e999", b"\0")


def mutated(data, draw):
    """A byte changed, some bytes cut out, junk put in, or a part repeated or left out."""
    kind, at = draw.randrange(4), draw.randrange(len(data))
    if kind == 0:
        return data[:at] + bytes([draw.randrange(256)]) + data[at + 1 :]
    if kind == 1:
        return data[:at] + data[at + draw.randrange(1, 20) :]
    if kind == 2:
        return data[:at] + draw.choice(JUNK) + data[at:]
    return data[:at] + data[draw.randrange(len(data)) :]


def fuzz_files(first, cwd, n=100):
    """Mutated files of a run raise nothing but CheckpointError."""
    folder = copy_run(cwd)
    checkpoint = folder / "checkpoints" / NEWEST
    weights = checkpoint / "model.safetensors"
    header = 8 + int.from_bytes(weights.read_bytes()[:8], "little")
    expected, refusals = model_tensors(load_run(folder).model), 0
    readers = [
        (checkpoint / "manifest.json", lambda: verify(checkpoint)),
        (checkpoint / "state.json", lambda: read_state(checkpoint)),
        (weights, lambda: (check_specs(weights, expected, "model"), dict(iter_tensors(weights)))),
        (folder / "config.yaml", lambda: read_config(folder)),
        (folder / "tokenizer.json", lambda: read_tokenizer(folder)),
    ]
    for seed in range(first, first + n):
        draw, (path, read) = random.Random(seed), readers[seed % len(readers)]
        data = path.read_bytes()
        end = header if path == weights else len(data)
        path.write_bytes(mutated(data[:end], draw) + data[end:])
        try:
            read()
        except CheckpointError:
            refusals += 1
        path.write_bytes(data)
    assert refusals > 0.5 * n


KEYS = [
    "train.steps", "seed", "model.d_model", "optimizer.lr", "debug", "name", "+new", "~seed", "++a.b", "",
    "model", "attention", "data.path", "train", "eval.every", "compile", "schedule", "resume_allow", "=",
    "size", "ffn", "position", "optimizer.eps", "schedule.warmup", "model.n_heads", "model.context_length",
    "model.attention.head_dim", "model.attention.v_head_dim", "model.attention.sliding_window",
    "model.attention.logit_softcap", "model.attention.scale", "model.ffn.expansion", "model.ffn.multiple_of",
    "model.ffn.d_ff", "model.head.logit_softcap", "model.position.rope_theta", "model.dropout",
    "model.position.rotary_fraction", "model.embedding.type_vocab_size",
]  # fmt: skip
VALUES = [
    "1", "-1", "null", "nan", "[1,2]", "{a: 1}", "'", '"', "${x}", "a,b", "1e400", "true", "", " ", "\0", "[",
    "choice(1,2)", "range(1,3)", "9" * 40, "../x", "x=y", "\\", "int(3)", "sort(2,1)", "é", "()",
    "!!python/name:os", "1e308", "1000000000", "-1e30", "2147483648",
]  # fmt: skip


def fuzz_overrides(first, cwd, n=10):
    """One random override or ten: a config, or an error of one line."""
    for seed in range(first, first + n):
        draw = random.Random(seed)
        parts = (KEYS, ("=", "=", "=", "", "=="), VALUES, ("", "x", "1", ",", "]"))
        overrides = ["".join(map(draw.choice, parts)) for _ in range(seed % 2 * 9 + 1)]
        try:
            config = compose(overrides)
            if seed % 4 == 0:
                check_parts(config)
        except (ValueError, MemoryError) as error:
            assert "\n" not in str(error), overrides


def walk(node, path=()):
    """The path of every key of nested dicts."""
    for key, value in node.items():
        yield (*path, key)
        if isinstance(value, dict):
            yield from walk(value, (*path, key))


DELETED = object()
SETTINGS = [DELETED, None, {}, [], "x", "a\0b", "../../x", -1, 10**30, math.nan, ["x"], {"x": "y"}]
TEXTS = [
    b"",
    b"null",
    b"{}",
    b"[]",
    b'"x"',
    b"-1",
    b"1" * 30,
    b"1" * 5000,
    b"NaN",
    b"[" * 9999,
    b"\xff\0",
]
TEXTS += [b'{"a":' * 9999, b'{"step": 1e999}', b"x" * (1 << 21)]
TEXT_FILES = [
    "tokenizer.json",
    "metrics.jsonl",
    "samples.jsonl",
    "owner.json",
    "environment.txt",
    "lock",
]
TEXT_FILES += [
    "checkpoints/latest",
    "checkpoints/best",
    *(f"checkpoints/{NEWEST}/{n}.json" for n in ("state", "manifest")),
]
READERS = ["resume", "init_from", "sample", "compare"]


def changed(config, path, value):
    """The config with another value at the path."""
    key, *rest = path
    new = changed(config[key], rest, value) if rest else value
    return {k: new if k == key else v for k, v in config.items() if k != key or new is not DELETED}


def fuzz_settings(paths, cwd):
    """A setting of config.yaml or state.json is deleted or has a value that makes no sense."""
    cwd.mkdir(exist_ok=True)
    os.chdir(cwd)
    folder = copy_run(cwd)
    checkpoint = folder / "checkpoints" / NEWEST
    config, state = yaml.safe_load((folder / "config.yaml").read_text()), checkpoint / "state.json"
    for path in paths:
        for value in SETTINGS:
            (folder / "config.yaml").write_text(
                yaml.safe_dump(changed(config, path, value), sort_keys=False)
            )
            for command in READERS:
                code, error = attempt(command)
                assert code in (0, 3, 4) or path[0] in ("device", "train") or value == {}, (
                    path,
                    value,
                    error,
                )
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    values = json.loads(state.read_text())
    for value in SETTINGS if paths[0] == ("name",) else ():
        for path in walk(values):
            state.write_text(json.dumps(changed(values, path, value)))
            write_manifest(checkpoint)
            attempt("resume")


def fuzz_texts(name, cwd):
    """A file of a run has other contents altogether."""
    os.chdir(cwd)
    folder = copy_run(cwd)
    for text in TEXTS:
        (folder / name).write_bytes(text)
        if name.endswith("state.json"):
            write_manifest(folder / "checkpoints" / NEWEST)
        for command in READERS:
            attempt(command)


def setting_paths():
    return [[path] for path in walk(yaml.safe_load((reference() / "config.yaml").read_text()))]


def test_fuzz_smoke(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    fuzz_files(0, tmp_path, 250)
    fuzz_overrides(0, tmp_path)
    fuzz_settings([("objective",)], tmp_path / "settings")


def test_deep_configs_are_refused_at_once(folder):
    for text in ("[" * 60_000, "".join(f"{' ' * i}a:\n" for i in range(300))):
        (folder / "config.yaml").write_text(text)
        for command in READERS:
            assert attempt(command)[0] == 4


FUZZ = [(fuzz_files, range(0, 12_000, 100)), (fuzz_overrides, range(0, 2000, 10))]
FUZZ += [(fuzz_texts, TEXT_FILES), (fuzz_settings, setting_paths)]


@pytest.mark.faults
@pytest.mark.parametrize(("fuzz", "items"), FUZZ)
def test_fuzz(tmp_path, fuzz, items):
    run_trials(fuzz, items() if callable(items) else items, tmp_path)
