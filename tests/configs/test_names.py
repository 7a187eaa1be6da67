"""Names of other projects."""

import pytest
import yaml

from configs.explain import known_settings, nearest
from model.generate.options import INPUTS, OPTIONS
from tests.parts import CONFIGS, names

GROUPS = [folder.name for folder in CONFIGS.iterdir() if folder.is_dir()]
pytestmark = pytest.mark.quick


def test_synonyms_are_of_names_that_exist():
    synonyms = yaml.safe_load((CONFIGS / "synonyms.yaml").read_text(encoding="utf-8"))
    settings = list(known_settings())
    values = ["true", "false", "null", "fp32", "bf16", "fp16", "online", "disabled"]
    options = [option for group in GROUPS for option in names(group)]
    flags = [name.split()[0] for name in INPUTS | OPTIONS]
    assert not synonyms.keys() - {*settings, *options, *values, *flags}
    found = [theirs for ours in settings for theirs in synonyms.get(ours, ())]
    assert len(found) == len({*found}), "each means one setting"
    assert nearest("modle", settings) == "model"
