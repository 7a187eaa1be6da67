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

from data.exchange import to_hub
from data.tokenizer import Tokenizer
from model import build_model
from model.config import ModelConfig
from model.hub import HubError, config_of, described, facts_of, fitting, located
from model.hub.files import files_of
from model.hub.tensors import read_tensors, written
from training.checkpoint import model_tensors
from training.published import read_tokenizer
from training.stored import model_config
from training.tensors import filled

CLOSE = 1e-4  # logits, as a share of the largest


class Pretrained(NamedTuple):
    config: ModelConfig
    tensors: dict  # for each parameter, in float32
    tokenizer: Tokenizer
    family: str

    def model(self):
        return filled(empty(self.config, self.tokenizer.vocab_size), self.tensors)


def read(place):
    """A folder in the Hugging Face formats, or the name of a model on the hub."""
    folder = located(place)
    family, config, theirs = described(folder)
    tokenizer = read_tokenizer(folder)
    try:
        config = model_config(asdict(config))
        layers = max(config.n_layers, config.encoder.n_layers or 0)
        if layers > len(files_of(folder)):
            raise HubError(f"{folder} has fewer tensors than its config.json has layers ({layers})")
        model = empty(config, tokenizer.vocab_size)
        table = family.tensors(facts_of(config, model), theirs)
        tensors = read_tensors(family, table, folder, model_tensors(model))
    except HubError:
        raise
    except (OmegaConfBaseException, ValueError, TypeError, RuntimeError, OverflowError) as error:
        said = str(error).partition("\n")[0]
        raise HubError(f"{folder / 'config.json'} does not describe a model: {said}") from None
    return Pretrained(config, tensors, tokenizer, family.model_type)


def empty(config, rows):
    with torch.device("meta"):
        return build_model(config, rows)


def export(opened, folder, kind=None):
    """Write a model as such a folder and prove it: what was written is read back and must say the same.
    `opened` is (model, tokenizer, config)."""
    if folder.exists():
        raise ValueError(f"{folder} exists already; choose another folder")
    model, tokenizer, config = opened
    facts, ids = facts_of(config, model), special_ids(tokenizer, config.kind)
    found = fitting(facts, ids, kind)
    with draft_of(folder) as draft:
        write(draft, found, model, tokenizer)
        prove(draft, model, tokenizer)
    return found.family


@contextmanager
def draft_of(folder):
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
    lifted = empty(config_of(facts, family.init), rows)
    tensors = lifted_tensors(model_tensors(lifted), model_tensors(model))
    theirs = {**theirs, "vocab_size": rows, "dtype": "float32"}
    save_file(written(family.tensors(facts, theirs), tensors), draft / "model.safetensors", {"format": "pt"})
    text, names = to_hub(tokenizer)
    (draft / "tokenizer.json").write_text(text, encoding="utf-8")
    said = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": facts["context"]}
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
def prove(draft, model, tokenizer):
    other = read(draft).model().eval()
    words = model.embedding.table.num_embeddings
    draw = torch.Generator().manual_seed(0)
    texts = [torch.randint(words, (2, min(model.context, 48)), generator=draw) for _ in range(2)]
    texts = texts if model.kind == "encoder_decoder" else texts[:1]
    ours, theirs = model.float()(*texts), other(*texts)
    difference = (ours - theirs).abs().max() / ours.abs().max().clamp(min=1e-6)
    if not difference <= CLOSE:
        raise HubError(
            f"what was written says something else (logits differ by {difference:.1e}); nothing is kept"
        )
