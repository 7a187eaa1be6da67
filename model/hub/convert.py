"""Convert: config, weights and tokenizer of a model, from a folder in a Hugging Face format and back."""

import json
import os
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from safetensors.torch import save_file

from configs.cli import expand_user
from configs.errors import CheckpointError
from configs.registry import flatten
from configs.schema import check_numbers
from model.checkpoint import assign_weights as load_weights
from model.checkpoint import did_you_mean_run, load_run, model_config, model_tensors, read_config
from model.hub import HubError, best_match, read_hf_config
from model.hub.files import files_of, refuse_invalid, resolve_folder
from model.hub.spec import config_from_spec, spec_from_config
from model.hub.tensors import read_tensors, resolve
from model.hub.tokenizer import drop_template, is_hf_folder, read_tokenizer, write_tokenizer
from model.transformer import build_model

LOGIT_TOLERANCE = 1e-4  # relative to the largest logit


def load_hf(place):
    """(model, tokenizer, config, name of the family) of a folder, or of the model of that name on the hub."""
    folder = resolve_folder(place)
    family, config, hf_config = read_hf_config(folder)
    with refuse_invalid(folder):
        tokenizer = read_tokenizer(folder, hf_config)
        config = model_config(asdict(config))
        n_layers = max(config.n_layers, config.encoder.n_layers or 0)
        if n_layers > len(files_of(folder)):  # before a model of so many layers is built
            raise HubError(f"{folder} has fewer tensors than config.json has layers ({n_layers})")
        with torch.device("meta"):
            model = build_model(config, tokenizer.vocab_size)
        table = family.tensors(spec_from_config(config, model), hf_config)
        model = load_weights(model, read_tensors(family, table, folder, model_tensors(model)))
    return model, tokenizer, config, family.model_type


def init_config(place):
    """The model and tokenizer settings that init_from loads, from a run or a Hugging Face folder."""
    if is_hf_folder(place):
        _, model, _ = read_hf_config(resolve_folder(place))
        return {"model": asdict(model), "tokenizer": {"kind": "hub"}}
    folder = expand_user(place)
    if place == "resume":
        raise ValueError("init_from= starts a new run; to continue one, use name=... resume=true")
    if not (folder.exists() or did_you_mean_run(folder)):
        command = f"python -m model.hub import --from {place} --to {Path('runs', folder.name)}"
        raise CheckpointError(
            f"no such run: {place}; for a model of the Hub, import it first: {command}"
        )
    config = read_config(folder)
    try:
        check_numbers(flatten(config["tokenizer"], "tokenizer."))
    except ValueError as error:
        raise CheckpointError(
            f"{folder / 'config.yaml'} does not describe a run: {error}"
        ) from None
    return {"model": config["model"], "tokenizer": config["tokenizer"]}


def init_model(place):
    """The (model, tokenizer) that init_from loads."""
    model, tokenizer, *_ = load_hf(place) if is_hf_folder(place) else load_run(expand_user(place))
    return model.train(), drop_template(tokenizer)


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
    """Write a folder and compare its logits. Return the family that the model was written as."""
    end, start, pad = map(tokenizer.specials.get, ("end", "start", "pad"))
    eos = tokenizer.end_ids if len(tokenizer.end_ids) > 1 else end
    bos = end if start is None and tokenizer.text is None else start
    ids = {"eos_token_id": eos, "bos_token_id": bos, "pad_token_id": pad}
    if config.kind == "encoder_decoder":
        ids |= {
            "decoder_start_token_id": start,
            "forced_eos_token_id": None,
            "is_encoder_decoder": True,
        }
    match = best_match(spec_from_config(config, model), ids, family)
    vocab_size, generator = model.embedding.table.num_embeddings, torch.Generator().manual_seed(0)
    ids = torch.tensor(
        [i for i in range(vocab_size) if i != pad]
    )  # padding has no position in RoBERTa
    n_inputs, length = 2 if model.kind == "encoder_decoder" else 1, min(model.context_length, 48)
    inputs = ids[torch.randint(len(ids), (n_inputs, 2, length), generator=generator)]
    with atomic_folder(folder) as draft, torch.inference_mode():
        write_folder(draft, match, model, tokenizer)
        expected = model.float()(*inputs)
        for reader, logits in read_logits(draft, match.family, inputs):
            difference = (expected - logits).abs().max() / expected.abs().max().clamp(min=1e-6)
            if not difference <= LOGIT_TOLERANCE:
                raise HubError(
                    f"read by {reader}, the logits differ by {difference:.1e}; nothing was kept"
                )
    return match.family


def read_logits(folder, family, inputs):
    """(what reads the folder, logits): import, which uses the same tables as export, so that their mistakes
    cancel out; and transformers, if it is installed and knows the class."""
    yield "import", load_hf(folder)[0].eval()(*inputs)
    try:
        import transformers

        model_class = getattr(transformers, family.architecture)
    except (ImportError, AttributeError):
        return
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    inputs = dict(zip(("input_ids", "decoder_input_ids"), inputs, strict=False))
    try:
        logits = model_class.from_pretrained(folder, local_files_only=True)(**inputs).logits
    except Exception as error:  # of many types
        reason = " ".join(str(error).split()) or type(error).__name__
        raise HubError(f"transformers cannot load it: {reason}") from None
    yield "transformers", logits


def write_folder(draft, match, model, tokenizer):
    family, spec, vocab_size = match.family, match.spec, model.embedding.table.num_embeddings
    hf_config = {**match.hf_config, "vocab_size": vocab_size, "dtype": "float32"}
    with torch.device("meta"):
        upgraded = build_model(config_from_spec(spec, family.init), vocab_size)
    tensors = model_tensors(model)
    for name, new in model_tensors(upgraded).items():
        if name == "head.map.weight" and name not in tensors:
            tensors[name] = tensors["embedding.table.weight"].clone()
        elif name not in tensors:  # such that no logit changes
            is_gain = name.endswith(("norm.weight", "query.1.weight"))
            tensors[name] = torch.full(new.shape, float(is_gain))
    resolved = resolve(family.tensors(spec, hf_config), tensors).items()
    hf_tensors = {
        hf: rule.to_hf([tensors[n] for n in part]).contiguous() for hf, (rule, part, _) in resolved
    }
    save_file(hf_tensors, draft / "model.safetensors", {"format": "pt"})
    write_tokenizer(draft, tokenizer, spec["context_length"])
    ids = {key: i for key, i in hf_config.items() if key.endswith("_token_id") and i is not None}
    for name, content in {"config": hf_config, "generation_config": ids}.items():
        (draft / f"{name}.json").write_text(json.dumps(content, indent=2), encoding="utf-8")
