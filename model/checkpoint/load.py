"""Load: a checkpoint becomes a model, its tensors compared with those the config asks for."""

from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn as nn
from safetensors import SafetensorError, safe_open

from configs.errors import CheckpointError
from data.tokenizers.tokenizer import Tokenizer
from model.checkpoint import files
from model.checkpoint.save import DTYPES, model_tensors
from model.transformer import build_model

MAX_TRIES = 20


def iter_entries(path, method):
    """(name, tensor or slice) one by one: what the method of the file has for each name."""
    try:
        with safe_open(path, "pt") as file:
            for name in file.keys():  # noqa: SIM118
                yield name, getattr(file, method)(name)
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{path} cannot be read ({error})") from None


def tensor_specs(path):
    """{name: dtype and shape} of the tensors in a file, from its header."""
    return {
        name: f"{s.get_dtype()} {tuple(s.get_shape())}"
        for name, s in iter_entries(path, "get_slice")
    }


def check_specs(path, tensors, owner):
    """The file has exactly the tensors of the owner (model or optimizer), by name, dtype and shape."""
    stored = tensor_specs(path)
    expected = {name: f"{DTYPES[t.dtype]} {tuple(t.shape)}" for name, t in tensors.items()}
    for name in sorted(stored.keys() | expected.keys()):
        here, own = stored.get(name, "missing"), expected.get(name, "none")
        if here != own:
            raise CheckpointError(
                f"{path}: {name!r:.200} is {here} and the {owner} of config.yaml has {own}"
            )


def iter_tensors(path):
    """(name, tensor) one by one, as copies: a mapped file that is cut short would kill the process."""
    for name, mapped in iter_entries(path, "get_tensor"):
        tensor = mapped.clone()
        if not torch.isfinite(tensor).all():
            raise CheckpointError(f"{path}: {name} has values that are NaN or infinite")
        yield name, tensor


def load_weights(model, tensors):
    model.load_state_dict(tensors, strict=False, assign=True)
    model.head.tie(model.embedding)
    return model.requires_grad_()


def build_on_meta(folder, config, vocab_size, max_layers=10_000):
    """The model of a config, with no memory for its weights: they may be larger than any file."""
    try:
        settings = files.model_config(config["model"])
        if max(settings.n_layers, settings.encoder.n_layers or 0) > max_layers:
            raise ValueError(f"{settings.n_layers} layers are more than its checkpoint has tensors")
        with torch.device("meta"):
            return build_model(settings, vocab_size)
    except (ValueError, TypeError, OverflowError, RuntimeError) as error:
        reason = str(error).partition("\n")[0]
        raise CheckpointError(
            f"{folder / 'config.yaml'} does not describe a model: {reason}"
        ) from None


class PackedLinear(nn.Module):
    """A linear map with weights in oneDNN's own layout. nn.Linear brings bf16 weights into it at each
    call, and leaves float32 to another library: packed, a token takes 0.4 to 0.8 of the time."""

    def __init__(self, linear):
        super().__init__()
        self.packed, self.bias = (
            torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach()),
            linear.bias,
        )

    def forward(self, x):
        return torch.ops.mkldnn._linear_pointwise(x, self.packed, self.bias, "none", [], "")

    @cached_property
    def weight(self):
        """Unpacked again for MLA, which multiplies by it itself."""
        return self.packed.to_dense()


def move_for_inference(model, device, dtype):
    """For inference only: on a CPU, linear maps are packed."""
    model.to(device, dtype)
    if device.type != "cpu" or dtype == torch.float16 or not torch.backends.mkldnn.is_available():
        return
    if dtype == torch.bfloat16 and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        return
    for parent in list(model.modules()):
        for name, module in parent.named_children():
            if type(module) is nn.Linear:
                setattr(parent, name, PackedLinear(module))


class LoadedRun(NamedTuple):
    model: nn.Module
    tokenizer: Tokenizer
    config: dict
    step: int  # at which it was saved


def load_run(folder, which="latest"):
    folder = Path(folder)
    config, tokenizer = files.read_config(folder), files.read_tokenizer(folder)
    for tries_left in reversed(range(MAX_TRIES)):
        before = files.list_checkpoints(folder / "checkpoints")
        try:
            return load_checkpoint(folder, which, config, tokenizer)
        except (
            CheckpointError
        ):  # a run that is training may have deleted it: then there is a newer one
            if not tries_left or files.list_checkpoints(folder / "checkpoints") == before:
                raise


def load_checkpoint(folder, which, config, tokenizer):
    checkpoint = files.find_checkpoint(folder, which)
    try:
        files.verify(checkpoint)
    except CheckpointError as error:
        steps = [
            str(files.step_of(other)) for other in files.whole_checkpoints(checkpoint.parent, [])
        ]
        hint = f"undamaged: step {' and '.join(steps)}" if steps else "no other is undamaged"
        raise CheckpointError(f"{error}; {hint}") from None
    path = checkpoint / "model.safetensors"
    model = build_on_meta(folder, config, tokenizer.vocab_size, len(tensor_specs(path)))
    check_specs(path, model_tensors(model), "model")
    model = load_weights(model, dict(iter_tensors(path))).eval()
    return LoadedRun(model, tokenizer, config, files.step_of(checkpoint))
