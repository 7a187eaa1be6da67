"""A command line becomes a typed tree, or one sentence that helps."""

import subprocess
import sys
from contextlib import suppress

import pytest
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from configs.compose import LEAST, PATHS, combinations, compose, composed, leaves, typed, with_objective
from data import SOURCES
from tests.parts import ROOT, names
from training.plan import check_parts

SENTENCES = [
    ("train.stepz=5", r"there is no train.stepz \(did you mean train.steps\?\)"),
    ("+train.stepz=5", "there is no train.stepz"),
    ("++train.stepz=5", "there is no train.stepz"),
    ("+foo=1", "there is no foo"),
    ("steps=5", r"there is no steps \(did you mean train.steps\?\)"),
    ("+seed=1", r"\+ adds what there is not yet, and there is seed; write seed= without it"),
    ("+attention=mla", r"\+ adds what there is not yet, and there is attention; write attention= without it"),
    ("attention=null", "group needs|must be a string"),
    ("attention=gqa,mha", "attention=gqa,mha lists several values; -m trains one model for each of them"),
    ("model=nope", "there is no model=nope; choose one of: bart, bert"),
    ("model=lama", r"there is no model=lama \(did you mean llama\?\)"),
    ("~train.steps", "train.steps has no value: it cannot be left out"),
    ("~schedule", "~schedule takes out what a run needs; schedule=... chooses another"),
    ("schedule=", "schedule= names no kind; choose one of: constant, cosine"),
    ("lr=1", r"there is no lr \(did you mean optimizer.lr\?\)"),
    ("data.pth=x", "there is no data.pth; there are data.cache, data.val_fraction, data.kind"),
    ("train.steps", "'train.steps' is not understood; write group=kind or key=value"),
    ("train.steps=1.5", "train.steps is 1.5; expected a whole number or null"),
    ("train.steps=abc", "train.steps is 'abc'; expected a whole"),
    ("train.steps=-1", r"train.steps must be from 0 to 1,000,000,000,000 and is -1"),
    ("train.steps=99999999999999999999", "train.steps must be from 0 to"),
    ("train.steps=null", "a run needs an end: give train.steps, train.tokens or train.minutes"),
    ("train.minutes=0", "train.minutes must be above 0 and is 0"),
    ("train.minutes=nan", "train.minutes is nan; expected a finite number"),
    ("train.tokens=0", "train.tokens must be from 1"),
    ("train.batch_size=0", "train.batch_size must be from 1"),
    ("train.micro_batch_size=0", "train.micro_batch_size is 0; expected auto or a number of rows"),
    ("train.micro_batch_size=all", "train.micro_batch_size is 'all'; expected auto or a number of rows"),
    ("train.grad_clip=-1", "train.grad_clip must be from 0"),
    ("train.grad_clip=inf", "train.grad_clip is inf; expected a finite number"),
    ("train.patience=0", "train.patience must be from 1"),
    ("eval.every=0", "eval.every must be from 1"),
    ("eval.max_examples=0", "eval.max_examples must be from 1"),
    ("checkpoint.keep=0", "checkpoint.keep must be from 1"),
    ("log.every=0", "log.every must be from 1"),
    ("seed=-1", "seed must be from 0"),
    ("compile=maybe", "compile is 'maybe'; choose one of: auto, true, false"),
    ("wandb.mode=on", "wandb.mode"),
    ("dry_run=perhaps", "dry_run is 'perhaps'; expected true or false"),
    ("hydra.run.dir=x", "hydra.run.dir is a setting of Hydra's own, and those do not act here"),
    ("+_target_=os.system", "there is no _target_"),
    ("+train._target_=os.system", "there is no train._target_"),
    ("train=3", "train is 3; expected its settings one by one, train.name=value"),
    ("model.head=foo", "model.head is 'foo'; expected its settings one by one"),
    ("train.steps=${nope}", "train.steps"),
]


@pytest.mark.parametrize(("word", "sentence"), SENTENCES, ids=[word for word, _ in SENTENCES])
def test_a_wrong_word_gets_one_sentence(word, sentence):
    with pytest.raises(ValueError, match=sentence) as told:
        compose([word])
    assert "\n" not in str(told.value) and len(str(told.value)) < 400


def test_patience_needs_evaluations():
    with pytest.raises(ValueError, match=r"train.patience counts evaluations, and there are none"):
        compose(["train.patience=2", "eval.every=null"])


NUMBERS = [key for key, value in leaves(compose()) if type(value) in (int, float)]
NUMBERS += ["model.attention.head_dim", "model.attention.v_head_dim", "model.attention.sliding_window"]
NUMBERS += [
    "model.attention.logit_softcap",
    "model.head.logit_softcap",
    "model.position.rope_theta",
    "model.ffn.d_ff",
]


@pytest.mark.parametrize("number", [10**40, 10**9, 1e308, -1e308])
def test_every_number_has_an_end(number):
    """What torch cannot count, and what no memory holds, is a sentence before anything is made."""
    usual = with_objective(["position=rope"])
    for key in NUMBERS:
        config = usual.copy()
        with suppress(ValueError, MemoryError, OmegaConfBaseException):
            OmegaConf.update(config, key, number)
            check_parts(typed(config, ()))
            assert number == 10**9, f"{key} does not go so far"


def test_a_model_needs_memory():
    for width, sentence in ((1 << 23, "the weights of this model are .* GiB"), (2**31, "fits in no memory")):
        with pytest.raises(MemoryError, match=sentence):
            check_parts(compose([f"model.d_model={width}"]))


def test_every_bound_is_of_a_setting():
    assert set(LEAST) <= {key for key, _ in leaves(compose())}


@pytest.mark.parametrize("source", names("data"))
def test_an_open_objective_is_the_one_that_fits(source):
    kind = OmegaConf.load(ROOT / f"configs/data/{source}.yaml").get("kind", "hub")
    for model, of_text in (("modern", "next_token"), ("bert", "masked"), ("t5", "span")):
        objective = with_objective([f"data={source}", f"model={model}"]).objective.kind
        assert objective == ("pairs" if SOURCES[kind].input_kind == "pairs" else of_text)


def test_an_open_objective_takes_its_options():
    assert compose(["model=bert", "objective.share=0.3"]).objective == {"kind": "masked", "share": 0.3}


@pytest.mark.parametrize(
    "path", ["a b (1).txt", "a=b.txt", "a,b", "书.txt", "it's", "end\\", "${x}", "[1]", ""]
)
def test_a_path_is_taken_as_it_is(path):
    kinds = ("text", "hub", "parallel", "parallel", "text", None)
    for key, kind in zip(PATHS, kinds, strict=True):
        config = composed([f"{key}={path}", *([f"data={kind}"] if kind else [])])
        assert OmegaConf.select(config, key) == path


def test_a_sweep_is_every_combination(tmp_path):
    (tmp_path / "a,b").touch()
    one = f"data.path={tmp_path}/a,b"
    jobs = combinations(["model=gpt2,llama", "size=tiny", "train.steps=range(1,3)", one])
    assert jobs == [
        [f"model={model}", "size=tiny", f"train.steps={steps}", one]
        for model in ("gpt2", "llama")
        for steps in (1, 2)
    ]
    assert combinations(["data.path=c,d e"]) == [["data.path=c"], ["data.path=d e"]]
    assert combinations(["model=glob(b*)"]) == [["model=bart"], ["model=bert"]]


def test_hydra_shows_itself():
    def shown(*words):
        done = subprocess.run([sys.executable, ROOT / "train.py", *words], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    config = OmegaConf.create(
        shown("model=bert", "--cfg", "job", "objective.share=0.3", "data=text", "data.path=a b")
    )
    assert config.objective == {"kind": "masked", "share": 0.3} and config.data.path == "a b"
    helped = shown("--help")
    for group in (path.name for path in (ROOT / "configs").iterdir() if path.is_dir()):
        [line] = [line for line in helped.splitlines() if line.startswith(f"{group}: ")]
        assert line.split(": ")[1].split(", ") == names(group)
