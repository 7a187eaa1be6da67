"""What init_from= loads: the settings, tokenizer and weights of a run or a Hugging Face folder."""

from dataclasses import asdict

from configs.cli import expand_user
from configs.errors import CheckpointError
from configs.parts import own_code
from data.tokenizers.tokenizer import Tokenizer
from model.checkpoint import LoadedRun, check_code, load_run, read_config, read_tokenizer
from model.hub.files import is_hf_folder, resolve_folder


def init_settings(place: str) -> dict:
    """The settings of a run or folder, among them model and tokenizer."""
    if is_hf_folder(place):
        from model.hub.convert import read_hf_config
        from model.hub.spec import config_from_spec

        spec = read_hf_config(resolve_folder(place)).spec
        return {"model": asdict(config_from_spec(spec)), "tokenizer": {"kind": "hub"}}

    run = expand_user(place)
    config = read_config(run, "; a model of the Hub has a name such as openai-community/gpt2")
    check_code(run, config, own_code())
    return config


def init_tokenizer(place: str) -> Tokenizer:
    from model.hub import tokenizer as hub
    from model.hub.convert import read_hf_config

    if not is_hf_folder(place):
        return read_tokenizer(expand_user(place))
    folder = resolve_folder(place)
    return hub.read_tokenizer(folder, read_hf_config(folder).config)


def load_pretrained(place: str, which: str = "latest") -> LoadedRun:
    """Load a run or a Hugging Face folder, which has no checkpoints: its step is 0."""
    if not is_hf_folder(place):
        return load_run(place, which)
    if which != "latest":
        raise CheckpointError(f"{place} is a Hugging Face folder: it has no checkpoint {which!r}")
    from model.hub.convert import load_hf

    model, tokenizer, config = load_hf(place)
    settings = {"model": asdict(config), "objective": {"kind": "auto"}}
    return LoadedRun(model.eval(), tokenizer, settings, 0)
