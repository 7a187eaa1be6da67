"""Overrides become a typed config."""

import pytest

from configs.compose import compose, prepare_arguments
from data.corpus import choose_objective
from tests.parts import CONFIGS, loaded, names, refused
from training.settings import check_parts

GROUPS = sorted({path.parent.name for path in CONFIGS.glob("*/*.yaml")})
NEEDED = {  # {option: other settings}
    "objective=masked": "model=bert",
    "objective=span": "model=t5",
    "objective=pairs": "data=synthetic",
    "objective=chat": "data=chat data.path=x",
    "objective=classify": "data=table data.path=x data.label=y",
    "adapt=lora": "optimizer=adamw",
    "adapt=freeze": "optimizer=adamw",
    "experiment=small_text": "data.path=x",
}


@pytest.mark.parametrize("group", GROUPS)
def test_every_option_of_every_group_builds(group):
    for option in names(group):
        overrides = [f"{group}={option}", "model.d_model=64", "model.n_heads=4", "model.n_layers=1"]
        if group == "data":
            settings = loaded("data", option)
            any_value = "{a:{kind:python}}" if option == "mix" else "x"
            overrides += [f"data.{key}={any_value}" for key in settings if settings[key] == "???"]
        needed = NEEDED.get(f"{group}={option}", "")
        check_parts(compose([*overrides, *needed.split()]))


@pytest.mark.quick
def test_objective_auto_fits_the_data_if_not_the_model():
    """(Those that fit both are in tests/data/test_main.py and tests/training/test_chat.py.)"""
    for input_kind in ("pairs", "chat"):
        assert choose_objective(input_kind, "encoder")["kind"] == input_kind


@pytest.mark.quick
@pytest.mark.parametrize(
    "value",
    ["a b (1).txt", "a=b.txt", "书.txt", "it's", 'a "b"', "end\\", "007", "1e5", "true", ""],
)
def test_paths_and_names_are_taken_as_typed(value):
    keys = ("data.source", "data.target", "data.path", "data.cache", "name")
    config = compose(["data=pairs", *(f"{key}={value}" for key in keys)])
    assert [config.data[key.partition(".")[2]] for key in keys[:4]] == [value] * 4
    assert config.name == value


def test_lists_of_paths_and_a_path_with_a_comma(tmp_path):
    comma = tmp_path / "a,b"
    comma.touch()
    cases = {"[a.txt,b/*.txt]": ["a.txt", "b/*.txt"], "[a b.md]": ["a b.md"], comma: str(comma)}
    for typed, expected in cases.items():
        assert compose(["data=text", f"data.path={typed}"]).data["path"] == expected


@pytest.mark.quick
@pytest.mark.parametrize(
    "typed, expected",
    [
        ("train.steps=5", ["tokens", "epochs", "minutes"]),
        ("train.tokens=3 train.minutes=1", ["steps", "epochs"]),
        ("train.epochs=null", []),
        ("++train.epochs=3", ["steps", "tokens", "minutes"]),
    ],
)
def test_a_length_replaces_all_others(typed, expected):
    words = typed.split()
    assert prepare_arguments(words)[len(words) :] == [f"train.{name}=null" for name in expected]


@pytest.mark.parametrize("size", ["model.d_model=8_388_608", "train.batch_size=1_000_000_000"])
def test_a_model_and_a_batch_must_fit_in_memory(size):
    with refused("the weights need .*, a batch .* GB", MemoryError):
        check_parts(compose([size]))
