"""Convert: config, weights and tokenizer of a model, from a folder in a Hugging Face format and
back."""

import json
import re
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from configs.errors import HubError
from configs.registry import Count, check_value
from configs.schema import ModelConfig
from data.disk import atomic_folder
from data.tokenizers.tokenizer import Tokenizer, load_hf_tokenizer
from model.hub.families import ALL, FAMILIES, LACKING
from model.hub.family import HEADLESS, HFConfig, Match, match, spec_from_hf
from model.hub.files import naming, resolve_folder
from model.hub.spec import Spec, config_from_spec, spec_from_config
from model.hub.tensors import CLASSIFIERS, read_tensors, resolve, stored_tensors
from model.hub.tokenizer import CONFIG, as_transformers, read_file, read_tokenizer, tokenizer_files
from model.transformer import build_model
from model.weights import assign_weights, model_tensors, read_json, write_tensors

LOGIT_TOLERANCE = 1e-4  # relative to the largest logit


def read_hf_config(folder: Path) -> Match:
    path = folder / "config.json"
    hf_config = read_json(path)
    with naming(path):
        name = str(hf_config.get("model_type"))
        if name not in FAMILIES:
            raise HubError(f"model_type {name} is not supported; {explain_lack(name)}")
        check_value("vocab_size", hf_config.get("vocab_size"), Count)
        family = FAMILIES[name]
        spec = spec_from_hf(family, hf_config)
    with naming(folder):
        names = stored_tensors(family, folder)
    heads = [name for name in names if not name.startswith(family.prefix)]
    if heads and all(re.match(CLASSIFIERS, name) for name in heads):
        raise HubError(f"{heads[0]} is of a classifier; only language models are supported")
    if spec["kind"] == "encoder" and not heads:
        spec |= HEADLESS
    return Match(family, spec, hf_config)


def explain_lack(name: str) -> str:
    if name in LACKING:
        return f"it needs {LACKING[name]}"
    near = ", ".join(get_close_matches(name, FAMILIES) or FAMILIES)
    return f"did you mean one of: {near}"


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


def first_match(spec: Spec, ids: HFConfig, name: str | None = None) -> Match:
    """Of the class with this name, or of the first which takes such a model: the one that it was
    imported from, if it still does."""
    families = [family for family in ALL if family.spec["kind"] == spec["kind"]]
    # its own class comes first, and the others stay as they are
    families.sort(key=lambda family: family.model_type != ids.get("model_type"))
    reasons = []
    for family in families if name is None else [FAMILIES[name]]:
        try:
            return match(family, spec, ids)
        except ValueError as error:
            reasons.append(f"{family.architecture} ({error})")
    raise HubError(f"no class of transformers fits this model: {', '.join(reasons)}")


def export(
    model: Any,
    tokenizer: Tokenizer,
    config: ModelConfig,
    folder: Path,
    name: str | None = None,
) -> str:
    """Write a folder, and keep it if its logits and ids are those of the run. Return the class of
    transformers."""
    files = tokenizer_files(tokenizer, config)
    ids = {
        "vocab_size": tokenizer.vocab_size,
        "pad_token_id": tokenizer.specials.get("pad"),
        **read_file(files, CONFIG),
    }
    if config.kind == "encoder_decoder":
        ids["is_encoder_decoder"] = True
    found = first_match(spec_from_config(config, model), ids, name)
    [architecture] = found.hf_config["architectures"]

    # random ids over the whole context; padding has no position in RoBERTa
    usable = [i for i in range(tokenizer.vocab_size) if i != ids["pad_token_id"]]
    n_inputs = 2 if config.kind == "encoder_decoder" else 1
    shape = (n_inputs, 1, model.context_length)
    generator = torch.Generator().manual_seed(0)
    places = torch.randint(len(usable), shape, generator=generator)
    inputs = torch.tensor(usable)[places]
    text = tokenizer.decode(usable)
    with atomic_folder(folder) as draft, torch.inference_mode():
        write_folder(draft, found, model, files)
        logits = model.float()(*inputs)
        theirs = read_logits(draft, architecture, inputs, model.head)
        tolerance = LOGIT_TOLERANCE * logits.abs().max().item()
        if not torch.allclose(theirs, logits, rtol=0, atol=tolerance):
            raise HubError("the folder's logits differ from those of the run; nothing was kept")
        encoding = load_hf_tokenizer(as_transformers(draft)).encode(text, add_special_tokens=False)
        if encoding.ids != tokenizer.encode(text).tolist():
            reason = "AutoTokenizer has another tokenizer for this class"
            raise HubError(f"{reason}; choose another --family")
    return architecture


def read_logits(folder: Path, architecture: str, inputs: Tensor, head: nn.Module) -> Tensor:
    """As transformers reads the folder. Where it cannot, as import does, which sees less: it has the
    tables of export, so that a mistake in them cancels out."""
    try:
        import transformers

        model_class = getattr(transformers, architecture)
    except (ImportError, AttributeError):
        return load_hf(folder)[0].eval()(*inputs)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    named = dict(zip(("input_ids", "decoder_input_ids"), inputs, strict=False))
    with naming("transformers cannot load it"):
        outputs = model_class.from_pretrained(folder, local_files_only=True)(**named)
        return outputs.logits if "logits" in outputs else head(outputs.last_hidden_state)


def write_folder(draft: Path, found: Match, model: nn.Module, files: dict[str, str]) -> None:
    """New weights, which change no logits, are 1 in a norm, a copy of the embedding in an untied
    head, and 0 elsewhere."""
    family, spec, hf_config = found
    with torch.device("meta"):
        upgraded = model_tensors(build_model(config_from_spec(spec), hf_config["vocab_size"]))
    tensors = model.state_dict()  # also of a tied head
    for name in upgraded.keys() - tensors.keys():
        shape = upgraded[name].shape
        is_gain = len(shape) == 1 and name.endswith("weight")
        tensors[name] = torch.full(shape, float(is_gain))
    hf_tensors = {}
    table = family.tensors(spec, hf_config)
    for hf_name, (rule, names) in resolve(table, upgraded).items():
        weight = rule.to_hf([tensors[name] for name in names])
        # a head may be the embedding, and a file has no tensor twice
        hf_tensors[hf_name] = weight.clone(memory_format=torch.contiguous_format)
    write_tensors(draft / "model.safetensors", hf_tensors)
    written = files | {CONFIG: json.dumps(hf_config, indent=2)}
    for name, text in written.items():
        (draft / name).write_text(text, encoding="utf-8")
