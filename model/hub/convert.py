"""Pretrained: a folder in the Hugging Face formats becomes a config, tensors and a tokenizer, and back."""

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
from model.hub import HubError, best_match, config_from_spec, read_hf_config, resolve_folder, spec_from_config
from model.hub.files import files_of
from model.hub.tensors import read_tensors, to_hf_tensors
from model.hub.tokenizer import is_hf_folder, read_tokenizer

LOGIT_TOLERANCE = 1e-4  # logits, as a share of the largest


class Pretrained(NamedTuple):
    config: ModelConfig
    tensors: dict  # for each parameter, in float32
    tokenizer: Tokenizer
    family: str

    def model(self):
        return load_weights(meta_model(self.config, self.tokenizer.vocab_size), self.tensors)


def load_hf(place):
    """A folder in the Hugging Face formats, or the name of a model on the hub."""
    folder = resolve_folder(place)
    family, config, theirs = read_hf_config(folder)
    tokenizer = read_tokenizer(folder)
    try:
        config = model_config(asdict(config))
        layers = max(config.n_layers, config.encoder.n_layers or 0)
        if layers > len(files_of(folder)):
            raise HubError(f"{folder} has fewer tensors than its config.json has layers ({layers})")
        model = meta_model(config, tokenizer.vocab_size)
        table = family.tensors(spec_from_config(config, model), theirs)
        tensors = read_tensors(family, table, folder, model_tensors(model))
    except HubError:
        raise
    except (OmegaConfBaseException, ValueError, TypeError, RuntimeError, OverflowError) as error:
        said = str(error).partition("\n")[0]
        raise HubError(f"{folder / 'config.json'} does not describe a model: {said}") from None
    return Pretrained(config, tensors, tokenizer, family.model_type)


def init_config(place):
    """The settings of model and tokenizer that init_from loads: of a run, or of a Hugging Face folder."""
    if is_hf_folder(place):
        _, model, _ = read_hf_config(resolve_folder(place))
        return {"model": asdict(model), "tokenizer": {"kind": "hub"}}
    stored = read_config(Path(place).expanduser())
    return {"model": stored["model"], "tokenizer": stored.get("tokenizer", {})}


def init_model(place):
    """(model, tokenizer) that init_from loads."""
    if is_hf_folder(place):
        found = load_hf(place)
        return found.model(), found.tokenizer
    loaded = load_run(Path(place).expanduser())
    return loaded.model.train(), loaded.tokenizer


def meta_model(config, rows):
    with torch.device("meta"):
        return build_model(config, rows)


def export(opened, folder, kind=None):
    """Write a model as such a folder and prove it: what was written is read back and must say the same.
    `opened` is (model, tokenizer, config)."""
    if folder.exists():
        raise ValueError(f"{folder} exists already; choose another folder")
    model, tokenizer, config = opened
    facts, ids = spec_from_config(config, model), special_ids(tokenizer, config.kind)
    found = best_match(facts, ids, kind)
    with atomic_folder(folder) as draft:
        write(draft, found, model, tokenizer)
        verify_export(draft, model, tokenizer)
    return found.family


@contextmanager
def atomic_folder(folder):
    """A place that becomes the folder once all is written; if that fails, nothing is left of it."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.parent) as room:
        draft = Path(room) / folder.name
        draft.mkdir()
        yield draft
        os.rename(draft, folder)


def special_ids(tokenizer, kind):
    end, start = (tokenizer.specials.get(name) for name in ("end", "start"))
    ids = {"eos_token_id": end, "bos_token_id": end if start is None else start}
    ids["pad_token_id"] = tokenizer.specials.get("pad")
    if kind == "encoder_decoder":
        ids |= {"decoder_start_token_id": start, "forced_eos_token_id": None, "is_encoder_decoder": True}
    return ids


def write(draft, found, model, tokenizer):
    family, theirs, facts, _ = found
    rows = model.embedding.table.num_embeddings
    lifted = meta_model(config_from_spec(facts, family.init), rows)
    tensors = lifted_tensors(model_tensors(lifted), model_tensors(model))
    theirs = {**theirs, "vocab_size": rows, "dtype": "float32"}
    save_file(
        to_hf_tensors(family.tensors(facts, theirs), tensors), draft / "model.safetensors", {"format": "pt"}
    )
    text, names = to_hf(tokenizer)
    (draft / "tokenizer.json").write_text(text, encoding="utf-8")
    said = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": facts["context_length"]}
    roles = {"end": "eos_token", "start": "bos_token", "pad": "pad_token", "mask": "mask_token"}
    said |= {role: names[name] for name, role in roles.items() if name in names}
    spoken = {key: i for key, i in theirs.items() if key.endswith("_token_id") and i is not None}
    for name, content in {"config": theirs, "tokenizer_config": said, "generation_config": spoken}.items():
        (draft / f"{name}.json").write_text(json.dumps(content, indent=2), encoding="utf-8")


def lifted_tensors(wanted, tensors):
    """What a lifted model has beyond the other one, such that no logit changes."""
    found = dict(tensors)
    for name, empty_one in wanted.items():
        if name == "head.map.weight" and name not in found:
            found[name] = tensors["embedding.table.weight"].clone()
        elif name not in found:
            gain = name.endswith("norm.weight") or name.endswith("query.1.weight")
            found[name] = torch.full(empty_one.shape, float(gain))
    return found


@torch.inference_mode()
def verify_export(draft, model, tokenizer):
    other = load_hf(draft).model().eval()
    words = model.embedding.table.num_embeddings
    draw = torch.Generator().manual_seed(0)
    texts = [torch.randint(words, (2, min(model.context_length, 48)), generator=draw) for _ in range(2)]
    texts = texts if model.kind == "encoder_decoder" else texts[:1]
    ours, theirs = model.float()(*texts), other(*texts)
    difference = (ours - theirs).abs().max() / ours.abs().max().clamp(min=1e-6)
    if not difference <= LOGIT_TOLERANCE:
        raise HubError(
            f"what was written says something else (logits differ by {difference:.1e}); nothing is kept"
        )
