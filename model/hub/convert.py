"""Convert: config, weights and tokenizer of a model, from a folder in a Hugging Face format and back."""

import json
import os
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import torch
from omegaconf.errors import OmegaConfBaseException
from safetensors.torch import save_file

from configs.schema import ModelConfig
from data.tokenizers.huggingface import to_hf
from data.tokenizers.tokenizer import Tokenizer
from model import build_model
from model.checkpoint.files import model_config, read_config
from model.checkpoint.load import load_run, load_weights
from model.checkpoint.save import model_tensors
from model.hub import HubError, best_match, read_hf_config
from model.hub.files import files_of, resolve_folder
from model.hub.spec import config_from_spec, spec_from_config
from model.hub.tensors import read_tensors, to_hf_tensors
from model.hub.tokenizer import is_hf_folder, read_tokenizer

LOGIT_TOLERANCE = 1e-4  # relative to the largest logit


class Pretrained(NamedTuple):
    config: ModelConfig
    tensors: dict  # one for each parameter, in float32
    tokenizer: Tokenizer
    family: str

    def model(self):
        return load_weights(meta_model(self.config, self.tokenizer.vocab_size), self.tensors)


def meta_model(config, vocab_size):
    with torch.device("meta"):
        return build_model(config, vocab_size)


def load_hf(place):
    """Read a folder, or the model of that name on the hub."""
    folder = resolve_folder(place)
    family, config, hf_config = read_hf_config(folder)
    tokenizer = read_tokenizer(folder)
    try:
        config = model_config(asdict(config))
        n_layers = max(config.n_layers, config.encoder.n_layers or 0)
        if n_layers > len(files_of(folder)):  # before a model of so many layers is built
            raise HubError(f"{folder} has fewer tensors than config.json has layers ({n_layers})")
        model = meta_model(config, tokenizer.vocab_size)
        table = family.tensors(spec_from_config(config, model), hf_config)
        tensors = read_tensors(family, table, folder, model_tensors(model))
    except HubError:
        raise
    except (OmegaConfBaseException, ValueError, TypeError, RuntimeError, OverflowError) as error:
        reason = str(error).partition("\n")[0]
        raise HubError(f"{folder / 'config.json'} does not describe a valid model: {reason}") from None
    return Pretrained(config, tensors, tokenizer, family.model_type)


def init_config(place):
    """The model and tokenizer settings that init_from loads, from a run or a Hugging Face folder."""
    if is_hf_folder(place):
        _, model, _ = read_hf_config(resolve_folder(place))
        return {"model": asdict(model), "tokenizer": {"kind": "hub"}}
    config = read_config(Path(place).expanduser())
    return {"model": config["model"], "tokenizer": config.get("tokenizer", {})}


def init_model(place):
    """The (model, tokenizer) that init_from loads."""
    if is_hf_folder(place):
        pretrained = load_hf(place)
        return pretrained.model(), pretrained.tokenizer
    run = load_run(Path(place).expanduser())
    return run.model.train(), run.tokenizer


@contextmanager
def atomic_folder(folder):
    """A draft that becomes the folder at the end; if anything fails, nothing of it stays."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.parent) as temporary:
        draft = Path(temporary) / folder.name
        draft.mkdir()
        yield draft
        os.rename(draft, folder)


def export(model, tokenizer, config, folder, family=None):
    """Write a folder, read it back and compare logits. Return the family that the model was written as."""
    specials = tokenizer.specials
    ids = {"eos_token_id": specials.get("end"), "bos_token_id": specials.get("start", specials.get("end"))}
    ids["pad_token_id"] = specials.get("pad")
    if config.kind == "encoder_decoder":
        ids |= {"decoder_start_token_id": specials.get("start"), "forced_eos_token_id": None}
        ids["is_encoder_decoder"] = True
    match = best_match(spec_from_config(config, model), ids, family)
    with atomic_folder(folder) as draft:
        write_folder(draft, match, model, tokenizer)
        verify_export(draft, model)
    return match.family


def write_folder(draft, match, model, tokenizer):
    family, spec, vocab_size = match.family, match.spec, model.embedding.table.num_embeddings
    hf_config = {**match.hf_config, "vocab_size": vocab_size, "dtype": "float32"}
    tensors = model_tensors(model)
    for name, new in model_tensors(meta_model(config_from_spec(spec, family.init), vocab_size)).items():
        if name == "head.map.weight" and name not in tensors:
            tensors[name] = tensors["embedding.table.weight"].clone()
        elif name not in tensors:  # such that no logit changes
            is_gain = name.endswith(("norm.weight", "query.1.weight"))
            tensors[name] = torch.full(new.shape, float(is_gain))
    hf_tensors = to_hf_tensors(family.tensors(spec, hf_config), tensors)
    save_file(hf_tensors, draft / "model.safetensors", {"format": "pt"})
    text, names = to_hf(tokenizer)
    (draft / "tokenizer.json").write_text(text, encoding="utf-8")
    roles = {"end": "eos_token", "start": "bos_token", "pad": "pad_token", "mask": "mask_token"}
    tokenizer_config = {role: names[name] for name, role in roles.items() if name in names}
    tokenizer_config["model_max_length"] = spec["context_length"]
    tokenizer_config["tokenizer_class"] = "PreTrainedTokenizerFast"
    ids = {key: i for key, i in hf_config.items() if key.endswith("_token_id") and i is not None}
    files = {"config": hf_config, "tokenizer_config": tokenizer_config, "generation_config": ids}
    for name, content in files.items():
        (draft / f"{name}.json").write_text(json.dumps(content, indent=2), encoding="utf-8")


@torch.inference_mode()
def verify_export(draft, model):
    restored, vocab_size = load_hf(draft).model().eval(), model.embedding.table.num_embeddings
    generator = torch.Generator().manual_seed(0)
    shape = (2, min(model.context_length, 48))
    inputs = [torch.randint(vocab_size, shape, generator=generator) for _ in range(2)]
    inputs = inputs if model.kind == "encoder_decoder" else inputs[:1]
    expected, logits = model.float()(*inputs), restored(*inputs)
    difference = (expected - logits).abs().max() / expected.abs().max().clamp(min=1e-6)
    if not difference <= LOGIT_TOLERANCE:
        raise HubError(f"the written model gives other logits (off by {difference:.1e}); nothing was kept")
