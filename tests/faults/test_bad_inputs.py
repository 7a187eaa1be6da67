"""What a user may get wrong: an exit code and one sentence each, before the first step, never a traceback."""

import re
from pathlib import Path

import pytest

from tests.training.runs import TEXT

CONFIG = [
    ("model.n_layr=4", r"no model.n_layr \(did you mean model.n_layers\?\)"),
    ("+foo=1", "there is no foo"),
    ("++train.lrr=2", "there is no train.lrr"),
    ("~optimizer.lr", "needs a value for rate"),
    ("optimizer.lr=nan", "rate is nan; expected a finite number"),
    ("optimizer.lr=inf", "rate is inf; expected a finite number"),
    ("optimizer.lr=-1", "rate must be above 0 and is -1"),
    ("train.steps=-5", "train.steps must be from 0"),
    ("train.steps=1.5", "train.steps is 1.5; expected a whole number"),
    ("train.steps=1e3", "train.steps is 1000.0; expected a whole number"),
    ("train.steps=99999999999999999999", "train.steps must be from 0"),
    ("debug=2", "debug is 2; expected true or false"),
    ("precision=fp61", "precision is 'fp61'; choose one of"),
    ("model.n_heads=3", r"d_model \(64\) must be a multiple of n_heads \(3\)"),
    ("attention=gqa model.attention.queries_per_kv=3", r"n_heads \(4\) must be a multiple of group \(3\)"),
    ("model.dropout=1.5", "dropout must be from 0 to below 1"),
    ("model.dropout=1.0", "dropout must be from 0 to below 1"),
    ("schedule.warmup=9", "warmup is 9 steps and the run has 4"),
    ("schedule.min_lr_ratio=2", "floor must be from 0 to 1"),
    ("train.batch_size=0", "train.batch_size must be from 1"),
    ("train.micro_batch_size=3", "expected a divisor of 4"),
    ("model.context_length=0", "model.context_length must be above 0"),
    ("optimizer.beta1=1.0", "beta1 must be from 0 to below 1"),
    ("train.grad_clip=-1", "train.grad_clip must be from 0"),
    ("eval.every=0", "eval.every must be from 1"),
    ("tokenizer=bpe tokenizer.vocab_size=10", "it must be at least 257"),
    ("model.kind=decodr", "model.kind is 'decodr'; choose one of"),
    ("device=tpu", "device is 'tpu'; choose one of"),
    ("name=../x", "name is '../x'; use letters"),
    ("name=/above/x", "name is '/above/x'; use letters"),
    ("name=../x resume=true", "name is '../x'; use letters"),
    ("+_target_=os.system", "there is no _target_"),
    ("wandb.project=${oc.env:HOME}", "a value is plain data and refers to nothing else"),
    ("model.n_layers=999999999", "model.n_layers must be from 1 to 10,000"),
    ("seed=abc", "seed is 'abc'; expected"),
    ("train.minutes=12:30:45", "train.minutes is '12:30:45'; expected"),
    ("log.every=0x10", "log.every is '0x10'; expected"),
    ("data.val_fraction=0", "expected a share between 0 and 1"),
    ("resume=maybe", "resume is 'maybe'; expected"),
    ("resume=true", "resume=true needs the name of a run"),
    ("resume_allow=3", "resume_allow is 3; expected a list of words"),
    ("checkpoint.keep=0", "checkpoint.keep must be from 1"),
    ("train=3", "train is 3; expected its settings one by one, train.name=value"),
    ("model=null", "a group needs the name of a kind"),
    ("optimizer=sgd", "there is no optimizer=sgd; choose one of"),
    ("wandb.mode=yes", "wandb.mode is 'yes'; choose one of"),
    ("-m resume=true seed=1,2", "resume=true: each run of a sweep"),
]
FILES = {
    "zero.txt": b"",
    "nul.txt": b"a\0b" * 999,
    "latin.txt": b"caf\xe9 " * 999,
    "tiny.txt": b"ab",
    "bad.jsonl": b'{"text": "a"}\nnot json\n',
    "other.jsonl": b'{"other": "a"}\n',
    "number.jsonl": b'{"text": 3}\n',
    "null.jsonl": b'{"text": null}\n',
    "two.txt": b"one\ntwo\n",
    "one.txt": b"one\n",
    "gap.txt": b"one\n\ntwo\n" * 50,
    "three.txt": b"one\nx\ntwo\n" * 50,
}
TABLE = "data=table data.field=text data.path="
PARALLEL = "model=bart data=parallel "
DATA = [
    ("data.path=none.txt", "there is no file or folder none.txt"),
    ("data.path=empty", "it holds no files"),
    ("data.path=/dev/zero", "there is no file or folder /dev/zero"),
    ("data.path=zero.txt", "what was found is empty"),
    ("data.path=nul.txt", "a NUL byte at offset 1"),
    ("data.path=latin.txt", "not UTF-8: byte 0xe9 at offset 3"),
    ("data.path=tiny.txt", "a window needs 33"),
    ("data.val_fraction=0.999", "a window needs 33"),
    ("model.context_length=100000", "a window needs 100001"),
    ("data.cache=/proc/x", "cannot use /proc/x"),
    ("data.cache=/dev/null", "cannot use /dev/null"),
    (TABLE + "bad.jsonl", "bad.jsonl:2: not JSON"),
    (TABLE + "other.jsonl", "has no field 'text'; its fields are: other"),
    (TABLE + "number.jsonl", "number.jsonl:1: text is 3; expected text"),
    (TABLE + "null.jsonl", "null.jsonl:1: text is null; expected text"),
    (PARALLEL + "data.source=two.txt data.target=one.txt", "two.txt has 2 lines and one.txt has 1"),
    (PARALLEL + "data.source=gap.txt data.target=three.txt", "gap.txt:2: the source is empty"),
    (PARALLEL + "data.source=three.txt data.target=gap.txt", ":2: the target is empty"),
]


@pytest.mark.parametrize(
    ("typed", "code", "sentence"),
    [(t, 2, s) for t, s in CONFIG] + [(t, 3, s) for t, s in DATA],
    ids=[t for t, _ in CONFIG + DATA],
)
def test_one_sentence(start, typed, code, sentence):
    for name, data in FILES.items():
        Path(name).write_bytes(data)
    Path("empty").mkdir()
    found, _, said = start(*typed.split())
    errors = [line for line in said.splitlines() if line.startswith("error: ")]
    assert found == code and len(errors) == 1 and re.search(sentence, errors[0]), said
    assert "Traceback" not in said and not list(Path("runs").glob("*"))


def test_the_text_may_begin_with_a_mark(start):
    Path("marked.txt").write_bytes(b"\xef\xbb\xbf" + TEXT.encode())
    assert start("data.path=marked.txt")[0] == 0


@pytest.mark.parametrize("place", ["none", "book.txt", "."])
def test_what_is_no_run(start, place):
    code, _, said = start.plainly(f"init_from={place}")
    assert code == 4 and "is not the folder of a run: it has no config.yaml" in said


def test_half_of_torchrun(start, monkeypatch):
    monkeypatch.setenv("RANK", "0")
    code, _, said = start()
    assert code == 2 and "WORLD_SIZE is not set, though others of torchrun's variables are" in said


def test_a_folder_that_cannot_be_written(start):
    Path("runs").write_text("a file")
    code, _, said = start()
    assert code == 6 and said.count("error: ") == 1 and "runs" in said
