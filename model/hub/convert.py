"""Convert: config, weights and tokenizer of a model, from a folder in a Hugging Face format and
back."""

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from configs.schema import ModelConfig
from data.disk import atomic_folder
from data.tokenizers.tokenizer import Tokenizer, load_hf_tokenizer
from model.hub import HubError, first_match, read_hf_config
from model.hub.family import Family, FamilyMatch
from model.hub.files import naming, resolve_folder
from model.hub.spec import config_from_spec, spec_from_config
from model.hub.tensors import read_tensors, resolve
from model.hub.tokenizer import (
    CONFIG,
    GENERATION,
    as_transformers,
    read_file,
    read_tokenizer,
    write_tokenizer,
)
from model.transformer import build_model
from model.weights import assign_weights, model_tensors, write_tensors

LOGIT_TOLERANCE = 1e-4  # relative to the largest logit


def load_hf(place: str | Path) -> tuple[nn.Module, Tokenizer, ModelConfig]:
    """The model of a folder, or of that name on the hub."""
    folder = resolve_folder(str(place))
    family, spec, hf_config = read_hf_config(folder)
    tokenizer = read_tokenizer(folder, hf_config)
    with naming(folder):
        config = config_from_spec(spec)
        with torch.device("meta"):
            model = build_model(config, tokenizer.vocab_size)
        table = family.tensors(spec, hf_config)
        tensors = read_tensors(family, table, folder, model_tensors(model))
        return assign_weights(model, tensors), tokenizer, config


def export(
    model: Any,
    tokenizer: Tokenizer,
    config: ModelConfig,
    folder: Path,
    family: str | None = None,
) -> Family:
    """Write a folder, and keep it if its logits are those of the model. Return the family that the
    model was written as."""
    ids = token_ids(tokenizer, config.kind)
    origin = read_file(tokenizer.files, CONFIG).get("model_type")
    match = first_match(spec_from_config(config, model), ids, family, origin)

    # random ids over the whole context; padding has no position in RoBERTa
    texts = torch.tensor([i for i in range(tokenizer.vocab_size) if i != ids["pad_token_id"]])
    n_inputs = 2 if config.kind == "encoder_decoder" else 1
    shape = (n_inputs, 1, model.context_length)
    inputs = texts[torch.randint(len(texts), shape, generator=torch.Generator().manual_seed(0))]
    with atomic_folder(folder) as draft, torch.inference_mode():
        write_folder(draft, match, model, tokenizer)
        expected = model.float()(*inputs)
        difference = (expected - read_logits(draft, match.family, inputs, model.head)).abs().max()
        if not difference <= LOGIT_TOLERANCE * expected.abs().max():
            raise HubError(f"the folder's logits differ by {difference:.1e}; nothing was kept")
        refuse_other_ids(draft, tokenizer, texts.tolist())
    return match.family


def refuse_other_ids(folder: Path, tokenizer: Tokenizer, ids: list[int]) -> None:
    """AutoTokenizer replaces the tokenizers of some classes, whatever the folder has."""
    theirs = as_transformers(folder)
    text = tokenizer.decode(ids)
    if theirs is None:
        return
    encoding = load_hf_tokenizer(theirs).encode(text, add_special_tokens=False)
    if encoding.ids != tokenizer.encode(text).tolist():
        raise HubError(
            "AutoTokenizer has another tokenizer for this class; choose another --family"
        )


def read_logits(folder: Path, family: Family, inputs: Tensor, head: nn.Module) -> Tensor:
    """As transformers reads the folder. Where it cannot, as import does, by the same tables as export,
    so that their mistakes cancel out."""
    try:
        import transformers

        model_class = getattr(transformers, family.architecture)
    except (ImportError, AttributeError):
        return load_hf(folder)[0].eval()(*inputs)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    named = dict(zip(("input_ids", "decoder_input_ids"), inputs, strict=False))
    with naming("transformers cannot load it"):
        outputs = model_class.from_pretrained(folder, local_files_only=True)(**named)
        return outputs.logits if "logits" in outputs else head(outputs.last_hidden_state)


def token_ids(tokenizer: Tokenizer, kind: str) -> dict[str, Any]:
    """The special tokens, as config.json has them, or had them when it was imported."""
    ids: dict[str, Any] = {"pad_token_id": tokenizer.specials.get("pad")}
    ids |= read_file(tokenizer.files, CONFIG)
    if not ids.pop("model_type", None):
        start = tokenizer.specials.get("start")
        [end, *more_ends] = tokenizer.end_ids
        ids["eos_token_id"] = [end, *more_ends] if more_ends else end
        ids["bos_token_id"] = end if start is None and tokenizer.text is None else start
        if kind == "encoder_decoder":
            ids["decoder_start_token_id"] = start
            ids["forced_eos_token_id"] = None
    if kind == "encoder_decoder":
        ids["is_encoder_decoder"] = True
    return ids


def write_folder(draft: Path, match: FamilyMatch, model: Any, tokenizer: Tokenizer) -> None:
    family, spec = match.family, match.spec
    vocab_size = model.embedding.table.num_embeddings
    hf_config = {**match.hf_config, "vocab_size": vocab_size, "dtype": "float32"}
    tensors = upgraded_tensors(model, config_from_spec(spec))
    hf_tensors = {}
    for hf_name, (rule, names) in resolve(family.tensors(spec, hf_config), tensors).items():
        hf_tensors[hf_name] = rule.to_hf([tensors[name] for name in names]).contiguous()
    write_tensors(draft / "model.safetensors", hf_tensors)
    write_tokenizer(draft, tokenizer, spec["context_length"])
    written = {CONFIG: hf_config}
    if CONFIG not in tokenizer.files:
        ids = {key: hf_config[key] for key in hf_config if key.endswith("_token_id")}
        written[GENERATION] = ids
    for name, content in written.items():
        (draft / name).write_text(json.dumps(content, indent=2), encoding="utf-8")


def upgraded_tensors(model: Any, config: ModelConfig) -> dict[str, Tensor]:
    """Those of a model of this config, with the same logits: new weights are 1 in a norm, a copy of
    the embedding in an untied head, and 0 elsewhere."""
    with torch.device("meta"):
        upgraded = build_model(config, model.embedding.table.num_embeddings)
    known = model.state_dict()
    known["head.map.weight"] = known["head.map.weight"].clone()  # it may be the embedding's
    tensors = {}
    for name, new in model_tensors(upgraded).items():
        is_gain = new.ndim == 1 and name.endswith("weight")
        tensors[name] = known[name] if name in known else torch.full(new.shape, float(is_gain))
    return tensors
