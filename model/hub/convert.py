"""Convert: load_hf() reads a model from a folder in a Hugging Face format, and export() writes such
a folder. Each compares the logits with those of transformers."""

import json
import re
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from configs.cli import warn
from configs.errors import HubError
from configs.flat import flatten
from configs.schema import ModelConfig
from data.disk import atomic_folder, write_files
from data.tokenizers.tokenizer import Tokenizer
from model.hub.families import ALL, FAMILIES
from model.hub.families.positions import windows
from model.hub.family import Keys, Match, load_transformers, read_config, write_config
from model.hub.files import naming, resolve_folder
from model.hub.spec import Spec, config_from_spec, spec_from_model
from model.hub.tensors import from_hf, to_hf
from model.hub.tokenizer import CONFIG, check_written, read_tokenizer, special_keys, tokenizer_files
from model.transformer import build_model
from model.weights import Tensors, assign_weights, model_tensors, read_json

LOGIT_TOLERANCE = 1e-4  # relative to the largest logit
CHECKED = 128  # positions that are compared: the logits of a whole context may not fit in memory
NO_MATTER = ("architectures", "dtype", "vocab_size", "transformers_version")  # may differ


def load_hf(place: str | Path) -> tuple[nn.Module, Tokenizer, ModelConfig]:
    """Load the model of a folder or of the Hub. Its config must survive being written and read
    back, and its logits must agree with those of transformers."""
    folder = resolve_folder(str(place))
    found = read_hf_config(folder)
    family, spec, hf_config = found
    tokenizer = read_tokenizer(folder, hf_config)
    with naming(folder):
        written = write_config(family, spec, special_keys(hf_config)).config
        model = model_without_weights(found)
        hf_model = load_in_transformers(found, folder)
        compared = example(hf_model, model.context_length)
        tensors = hf_model.state_dict()
        del hf_model  # from_hf() empties the dict, which then has the only references
        weights = from_hf(found.table(), family.optional, tensors, model_tensors(model))
        assign_weights(model, weights)

        # the text of the comparison may be shorter than a window
        if windows(hf_config) != windows(written) or not agree(model, found, *compared):
            raise HubError(
                "the logits or windows differ from those of transformers; keys that an export would "
                f"change: {changed_keys(hf_config, written)}"
            )

    if family.note and not found.head:
        warn(f"{family.model_type}: {family.note}")
    return model, tokenizer, config_from_spec(spec)


def read_hf_config(folder: Path) -> Match:
    path = folder / CONFIG
    name = str(read_json(path).get("model_type"))

    with naming(path):
        if name not in FAMILIES:
            near = ", ".join(get_close_matches(name, FAMILIES) or FAMILIES)
            raise HubError(f"model_type {name} is not supported; did you mean one of: {near}")

        config = load_transformers().CONFIG_MAPPING[name].from_pretrained(folder)
        if getattr(config, "quantization_config", None):
            raise HubError("quantization_config is set; only floating-point weights are supported")
        family = FAMILIES[name]
        return Match(family, read_config(family, config), config)


def changed_keys(config: Any, written: Any) -> str:
    """The keys of config.json that an export would write with another value."""
    ours = flatten(written.to_dict())
    changed = []
    for name, value in flatten(config.to_dict()).items():
        if name not in NO_MATTER and value != ours.get(name):
            changed.append(f"{name} is {json.dumps(value, default=str):.70}")
    return ", ".join(changed) or "none"


def export(
    model: Any, tokenizer: Tokenizer, folder: Path, name: str | None = None
) -> tuple[Match, Any]:
    """Write a folder, if its logits and ids are those of the run. Returns what it describes, and
    the model in transformers. `name`: of its class, if it is chosen."""
    load_transformers()  # first, else each class would be refused because it is missing
    files = tokenizer_files(tokenizer, model)

    # config.json is written with the model
    special = {"vocab_size": tokenizer.vocab_size, **json.loads(files.pop(CONFIG))}
    found = first_match(spec_from_model(model), special, name)
    hf_model = to_transformers(model.float(), found)
    if not agree(model, found, *example(hf_model, model.context_length)):
        raise HubError(
            f"the logits of {type(hf_model).__name__} differ from those of the run; "
            "choose another --family"
        )

    hf_model._keys_to_ignore_on_save = None  # else Marian would lose its positions
    with atomic_folder(folder) as draft:
        hf_model.save_pretrained(draft)
        write_files(draft, files)
        for path in draft.glob("*.*"):  # else only their owner could read the weights
            path.chmod(draft.stat().st_mode & 0o666)
        check_written(draft, tokenizer)
    return found, hf_model


def first_match(spec: Spec, special: Keys, name: str | None = None) -> Match:
    """The match of the class with this name, or of the first class that fits: the one that the
    model was imported from, if it still fits."""
    if spec["bigrams"]:
        raise HubError(
            "no class of transformers has bigrams; for an export, train with model.bigrams=null"
        )
    if spec["ffn.kind"] == "moe":
        raise HubError("a model with ffn=moe cannot be exported; train with another ffn=")

    families = [family for family in ALL if family.spec["kind"] == spec["kind"]]
    families.sort(key=lambda family: family.model_type != special.get("model_type"))
    if name is not None:
        families = [FAMILIES[name]]
    reasons = []
    for family in families:
        try:
            return write_config(family, spec, special)
        except ValueError as error:
            reasons.append(f"{family.model_type} ({error})")
    raise HubError(f"no class of transformers fits this model: {', '.join(reasons)}")


def to_transformers(model: Any, found: Match) -> Any:
    """The model in transformers. Tensors that only its class has change no logit."""
    ours = model.state_dict()  # with the weight of a tied head
    if model.kind == "decoder" and not found.spec["embedding_norm"]:
        ours["embedding.table.weight"] = model.stack.embedding_norm(model.embedding.table.weight)

    tensors = {}
    for name, needed in model_tensors(model_without_weights(found)).items():
        tensors[name] = ours[name] if name in ours else neutral(name, needed.shape, model)
    return load_in_transformers(found, None, to_hf(found.table(), tensors))


def model_without_weights(found: Match) -> Any:
    with torch.device("meta"):
        return build_model(config_from_spec(found.spec), found.config.vocab_size)


def neutral(name: str, shape: torch.Size, model: Any) -> Tensor:
    """A tensor that changes no logit of the model, which lacks it: sines in a table of positions,
    ones in a norm, and zeros elsewhere."""
    if name.endswith(".table.weight"):
        position = model.get_submodule(name.removesuffix(".table.weight"))
        return position.embed(torch.zeros(1, *shape), torch.arange(shape[0])[None])[0]
    is_gain = len(shape) == 1 and name.endswith("weight")
    return torch.full(shape, float(is_gain))


@naming("cannot load the weights")
def load_in_transformers(found: Match, folder: Path | None, state: Tensors | None = None) -> Any:
    """The model of transformers in float32, from a folder or from tensors. Missing tensors are
    refused: they would be random, here and there."""
    model_class = found.model_class()
    model, report = model_class.from_pretrained(
        folder,
        config=found.config,
        state_dict=state,
        dtype=torch.float32,
        output_loading_info=True,
        local_files_only=True,
        ignore_mismatched_sizes=True,  # they are reported
    )

    optional = f"{found.family.optional}|^pooler"  # which is dropped below
    missing = [name for name in report["missing_keys"] if not re.search(optional, name)]
    if missing:
        raise HubError(f"{min(missing)} is missing (tensors: {len(missing)})")
    if mismatched := sorted(report["mismatched_keys"]):
        name, shape, expected = mismatched[0]
        raise HubError(f"{name} has the shape {[*shape]}; config.json needs {[*expected]}")
    if unexpected := sorted(report["unexpected_keys"]):
        names = ", ".join(unexpected[:3])
        warn(f"tensors that {model_class.__name__} does not have are left out: {names:.300}")

    if getattr(model, "pooler", None) is not None:
        if folder is not None:
            warn("the pooler is dropped: --embed makes vectors, and an export has no pooler")
        model.pooler = None
    return model.eval()


@torch.inference_mode()
def example(hf_model: Any, context_length: int) -> tuple[Tensor, Tensor]:
    """Returns (random ids, their logits in transformers); for a model without a head, the last
    hidden states. No id is padding, which has no position in RoBERTa."""
    config = hf_model.config
    names = ["input_ids"]
    if config.is_encoder_decoder:
        names.append("decoder_input_ids")
    usable = torch.tensor([i for i in range(config.vocab_size) if i != config.pad_token_id])
    shape = (len(names), 1, min(context_length, CHECKED))
    generator = torch.Generator().manual_seed(0)
    inputs = usable[torch.randint(len(usable), shape, generator=generator)]
    outputs = hf_model(**dict(zip(names, inputs, strict=True)))
    return inputs, outputs.get("logits", outputs.get("last_hidden_state"))


@torch.inference_mode()
def agree(model: Any, found: Match, inputs: Tensor, expected: Tensor) -> bool:
    """Whether the logits of the model agree with those of an example()."""
    logits = model.eval()(*inputs)
    if model.classes:
        logits = logits[:, 0 if model.kind == "encoder" else -1]
    if found.head == "none":
        expected = model.head(expected)
    if not logits.isfinite().all():
        raise FloatingPointError("the logits are NaN or infinite, so they cannot be compared")
    return bool((logits - expected).abs().max() <= LOGIT_TOLERANCE * expected.abs().max())
