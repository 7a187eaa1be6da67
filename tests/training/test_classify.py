"""Classifiers: from labels in a table to the labels of a prompt."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
import transformers as hf
from tokenizers.processors import TemplateProcessing

import sample
from configs.compose import compose
from data.__main__ import main as preview
from data.corpus import load_data
from model.checkpoint import load_run
from model.hub.__main__ import main as hub
from tests.model.hub.hub_models import build_hf, byte_pairs, save
from tests.training.runs import last, read_lines, rows, tensors
from training.classifier import class_metrics, draw_confusion
from training.evaluate import main as evaluate

LABELS = ["Sci/Tech", "été", "other$x_$"]
LABELLED = ["data=table", "data.path=labels.jsonl", "data.label=label"]
LONG = ["train.steps=80", "train.batch_size=16", "eval.max_examples=100"]


def word(number):
    return "abc"[number % 3] * (1 + number % 7)


def write(labels, n=240, name="labels.jsonl"):
    """Texts whose first word, not the others, tells the label."""
    texts = [f"{word(i)} {word(i // 3)} {word(i // 5)} {i}" for i in range(n)]
    table = [{"text": text, "label": labels[i % 3]} for i, text in enumerate(texts)]
    Path(name).write_text("".join(json.dumps(row) + "\n" for row in table))


@pytest.fixture
def fit(run):
    """fit(*overrides) -> the folder of a run on labels, which are LABELS"""
    write(LABELS)
    return lambda *overrides: run(*LABELLED, *overrides)


@pytest.fixture
def answer(command):
    """answer(run, *options) -> what sample.py prints"""
    return lambda run, *options: (
        command(sample.main, f"--run={run}", "--precision=fp32", *options).out
    )


@pytest.mark.parametrize("model", ["modern_encoder", "bert model.head.pooling=mean", "llama"])
def test_it_learns_and_answers(fit, model, answer, command):
    """With the names of the classes unchanged, and the same answers one by one. If all labels are
    wrong, the confusion matrix is not diagonal."""
    folder = fit(*f"model={model}".split(), *LONG, "sample.every=40")
    assert last(folder, "val_accuracy", "val_f1", "full") == (1, 1, True)
    [[confusion]] = rows(folder, "confusion")
    classes = sorted(LABELS)
    for name in ("again.png", "again.svg"):
        draw_confusion(confusion, classes, Path(name))
    assert Path("again.png").read_bytes() == (folder / "confusion.png").read_bytes()
    texts = re.findall("<!-- (.*) -->", Path("again.svg").read_text())
    numbers = [str(number) for row in confusion for number in row]
    assert texts == [*classes, "prediction", *classes, "label", *numbers]
    write([*LABELS[1:], LABELS[0]], 60, "wrong.jsonl")
    wrong = [*LABELLED, "data.path=wrong.jsonl", "data.val_path=wrong.jsonl"]
    printed = command(evaluate, f"--run={folder}", "--json", *wrong).out
    assert json.loads(printed)["confusion"] == [[0, 20, 0], [0, 0, 20], [20, 0, 0]]
    shown = read_lines(folder / "samples.jsonl")[-1]
    assert shown["label"] == shown["prediction"] in LABELS

    texts = ["a bb c 1", "bbbbbbb a a 100", "c c c"]
    Path("texts").write_text("\n".join(texts))
    together = answer(folder, "--file=texts")
    assert [line.partition(" ")[0] for line in together.splitlines()] == LABELS
    assert together == "".join(answer(folder, text) for text in texts)
    found = json.loads(answer(folder, "--json", texts[0]))
    assert found["label"] == next(iter(found["probabilities"])) == LABELS[0]
    assert sum(found["probabilities"].values()) == pytest.approx(1)


def test_a_run_is_resumed_evaluated_and_tuned(fit, start, command):
    fit("model=modern_encoder", "train.steps=8", "name=whole")
    fit("model=modern_encoder", "train.steps=8", "checkpoint.every=4", "name=part")
    start("name=part", "resume=true", "train.steps=12")
    start("name=whole", "resume=true", "train.steps=12")
    assert tensors("runs/part") == tensors("runs/whole")
    found = json.loads(command(evaluate, "--run=runs/whole", "--json").out.splitlines()[-1])
    logged = last("runs/whole", "val_loss", "val_accuracy")
    assert logged == (found["val_loss"], found["val_accuracy"])

    write([1, 10, 2], name="numbers.jsonl")
    numbers = [*LABELLED, "data.path=numbers.jsonl"]
    start("model=modern_encoder", "name=base")
    pooled = start("init_from=runs/base", "model.head.pooling=mean", code=2).err
    assert "model.head.pooling is for model.kind=encoder and a data.label" in pooled
    start("init_from=runs/base", *numbers, "adapt=lora", "model.head.pooling=mean", "name=tuned")
    tuned = load_run("runs/tuned").model
    assert tuned.classes == ["1", "10", "2"]
    assert tuned.head.map.weight.any(), "it is trained, too: a new one is zero"
    start("init_from=runs/tuned", *numbers, "train.steps=0", "name=copy")
    assert last("runs/copy", "val_loss") == last("runs/tuned", "val_loss")


def test_f1_is_the_mean_over_the_classes_that_occur():
    found = class_metrics(np.array([[3, 1, 0], [0, 2, 0], [0, 0, 0]]))
    assert (found["val_accuracy"], found["val_f1"]) == pytest.approx((5 / 6, (6 / 7 + 4 / 5) / 2))


def test_batches_are_in_random_order(room):
    """Not sorted by length, which may tell the class. A source of a mix may have one class only."""
    write(LABELS)
    write("zzz", name="z.jsonl")
    mix = "data.sources={z:{kind:table,path:z.jsonl,label:label},"
    mix += "a:{kind:table,path:labels.jsonl,field:text,label:label}}"
    for data in (LABELLED, ["data=mix", mix]):
        train = load_data(compose([*data, "size=tiny", "tokenizer=byte"])).train
        for step in range(9):
            assert {*train.batch_ids(step)} == {*train.example_ids(16 * step + np.arange(16))}


def test_a_dry_run_counts_a_head_for_classes(start):
    printed = start("dry_run=true", *LABELLED, "model=llama", "model.d_model=64").out
    assert ", head 128" in printed, "two classes"


UNLEARNABLE = [
    (LABELS, "data.label=kind", 3, "has None as 'kind', not text; its fields are: text, label"),
    ([1.5, 1, 2], "", 3, "has 1.5 as 'label', not text"),
    (["x", " ", "y"], "", 3, "the source or the target (or label) is empty"),
    (["x", "x", "x"], "", 3, "a classifier needs at least two classes, all of them"),
    (["1", "2", "x"], "model.classes=[1,2,2,x]", 3, "two classes, all of them different"),
    (LABELS, "model.classes=[other,x]", 3, "the model does not have the class 'Sci/Tech'"),
    (LABELS, "data.val_path=new.jsonl", 3, "the training data does not have the class 'new'"),
    (LABELS, "data.label=null model.classes=[a,b]", 2, "this model has classes: it needs a data"),
    (LABELS, "data.label=null model.head.pooling=mean", 2, "model.head.pooling is for model.kind"),
]


@pytest.mark.parametrize("labels, overrides, code, message", UNLEARNABLE)
def test_what_cannot_be_learned(start, labels, overrides, code, message):
    write(labels)
    write(["new"] * 3, 9, "new.jsonl")
    assert message in start("model=bert", *LABELLED, *overrides.split(), code=code).err


def test_what_a_classifier_refuses(fit, command):
    place = f"--run={fit('model=llama')}"
    for option in ("--temperature=0", "--explain=x.html"):
        printed = command(sample.main, place, "x", option, code=2)
        assert "has no effect: this model is a classifier" in printed.err
    assert "--score needs a decoder" in command(sample.main, place, "x", "--score", code=2).err
    printed = command(hub, "export", place, "--to=x.gguf", code=4)
    assert "a GGUF file has no place for classes" in printed.err


def test_a_tuned_bert_in_transformers(fit, command, answer):
    """Its tokenizer surrounds a text there as it did here, and the pipeline prints the same."""
    save(build_hf("bert"), Path("hf"))
    backend = byte_pairs()
    ids = [(token, backend.token_to_id(token)) for token in ("<eos>", "<pad>")]
    backend.post_processor = TemplateProcessing("<pad> $A <eos>", special_tokens=ids)
    hf.PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<eos>").save_pretrained("hf")
    folder = fit("init_from=hf", "train.steps=20", "optimizer.lr=0.001")
    command(hub, "export", f"--run={folder}", "--to=out")
    pipeline = hf.pipeline("text-classification", "out", top_k=None)
    assert type(pipeline.model) is hf.BertForSequenceClassification
    expected = {row["label"]: row["score"] for row in pipeline("a cat's hat")[0]}
    for place in (folder, "out"):
        found = json.loads(answer(place, "--json", "a cat's hat"))["probabilities"]
        assert found == pytest.approx(expected)


def test_the_preview(room, command):
    write(LABELS)
    printed = command(preview, *LABELLED, "model=bert", "size=tiny", "tokenizer=byte").out
    assert "1.00 bytes per token" in printed
    row = "tokens +'(a.*\ntargets +'Sci/Tech|b.*\ntargets +'été|c.*\ntargets +'other)'"
    assert len(re.findall(row, printed)) == 4
