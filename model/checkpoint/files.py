"""Files: the folder of a run, read and checked. Untrusted data: it runs no code, names no path outside."""

import hashlib
import json
import math
import os
import re
import stat
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any

import yaml

from configs.errors import CheckpointError
from configs.registry import Bounds, NonNegative, flatten, from_dict
from configs.schema import MAX_INT, ModelConfig, check_numbers
from data.disk import PLAIN
from data.tokenizers.tokenizer import tokenizer_from_state

RUNS_DIR = Path("runs")
STEP = re.compile(r"step-\d{8}")
FILES = {"model.safetensors", "optimizer.safetensors", "state.json"}
FORMAT = 2
MAX_BYTES, MAX_CONFIG_BYTES, MAX_TOKENIZER_BYTES = 1 << 20, 1 << 16, 1 << 26
MAX_CONFIG_DEPTH = 16

Steps = Annotated[int, Bounds(least=0, most=MAX_INT)]
AtLeastOne = Annotated[int, Bounds(least=1, most=MAX_INT)]


@dataclass
class TrainState:
    """How far a run has come, and how well."""

    step: Steps = 0
    best_val_loss: NonNegative | Annotated[float, (math.inf,)] = math.inf
    evals_since_best: Steps = 0
    last_eval_step: Annotated[int, Bounds(least=-1, most=MAX_INT)] = -1
    skipped_steps: Steps = 0  # their gradients overflowed float16

    def judge(self, loss):
        if self.last_eval_step != self.step:  # repeated after a resume, it counts once
            self.evals_since_best = 0 if loss < self.best_val_loss else self.evals_since_best + 1
            self.best_val_loss, self.last_eval_step = min(loss, self.best_val_loss), self.step

    def out_of(self, patience):
        return patience is not None and self.evals_since_best >= patience


@dataclass(kw_only=True)
class StoredState(TrainState):  # state.json
    format: int
    total_steps: Steps
    stop_criteria: list[Any]  # train.steps, tokens, epochs and minutes, which set total_steps
    micro_batch_size: AtLeastOne
    scaler: dict[str, Any]  # a ScalerState, or empty
    dataset_key: str


@dataclass
class ScalerState:  # of torch's GradScaler
    scale: Annotated[float, Bounds(least=1e-30, most=1e30)]
    growth_factor: Annotated[float, Bounds(least=1, most=1e3)]
    backoff_factor: Annotated[float, Bounds(least=1e-3, most=1)]
    growth_interval: AtLeastOne
    _growth_tracker: Steps


def list_runs(runs_dir=RUNS_DIR):
    """The folders of all runs, also of sweeps; the last is that with the newest checkpoint."""
    folders = [*runs_dir.glob("*/checkpoints"), *runs_dir.glob("sweep-*/*/checkpoints")]
    return [folder.parent for folder in sorted(folders, key=os.path.getmtime)]


def newest_run(runs_dir):
    for run in reversed(list_runs(runs_dir)):
        if list_checkpoints(run / "checkpoints") or (run / "checkpoints/latest").exists():
            return run
    raise CheckpointError(
        f"{runs_dir}/ has no run with a checkpoint; train one first: python train.py"
    )


def did_you_mean_run(place):
    """A hint at the run whose name is nearest to a name or folder, or nothing."""
    runs = {name: r for r in list_runs() for name in (r.name, r.relative_to(RUNS_DIR).as_posix())}
    near = get_close_matches(Path(place).as_posix().removeprefix(f"{RUNS_DIR}/"), runs, 1)
    return f" (did you mean {runs[near[0]]}?)" if near else ""


def list_checkpoints(folder):
    """The checkpoints in runs/name/checkpoints, newest first."""
    return sorted(
        (path for path in folder.glob("step-*") if STEP.fullmatch(path.name)), reverse=True
    )


def step_dir(step):
    return f"step-{step:08}"


def step_of(checkpoint):
    return int(checkpoint.name.removeprefix("step-"))


def refuse_links(folder):
    """A run keeps plain files: a link would lead outside, a pipe would block whoever opens it."""
    for parent, folders, files in os.walk(folder):
        for path in (Path(parent, name) for name in (*folders, *files)):
            with suppress(FileNotFoundError):  # by a run that is deleting old checkpoints
                if stat.S_IFMT(path.lstat().st_mode) not in (stat.S_IFREG, stat.S_IFDIR):
                    raise CheckpointError(f"{path} is a link or not a regular file; remove it")
        if "wandb" in folders:  # wandb makes links of its own
            folders.remove("wandb")


def read_config(folder):
    if not os.path.exists(folder):
        raise CheckpointError(f"no such run: {folder}{did_you_mean_run(folder)}")
    refuse_links(folder)
    path = folder / "config.yaml"
    if not path.exists():
        importing = f"; import it first: python -m model.hub import --from {folder} --to runs/..."
        hint = importing if os.path.exists(folder / "config.json") else ""
        raise CheckpointError(f"{folder} is not the folder of a run: it has no config.yaml{hint}")
    try:
        text = read_text(path, MAX_CONFIG_BYTES)
        depth = 0
        for event in yaml.parse(text):
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(
                event, yaml.CollectionEndEvent
            )
            if (
                depth > MAX_CONFIG_DEPTH
                or getattr(event, "anchor", None)
                or getattr(event, "tag", None)
            ):
                raise yaml.YAMLError  # an alias may repeat a node without end
        config = yaml.safe_load(text)
        plain = json.loads(json.dumps(config)) == config  # no dates, and no keys but strings
    except (ValueError, TypeError, RecursionError, yaml.YAMLError) as error:
        raise CheckpointError(f"{path} cannot be read ({type(error).__name__})") from None
    parts = (
        [config.get(part) for part in ("model", "tokenizer")]
        if isinstance(config, dict)
        else [None]
    )
    if not plain or not all(part and isinstance(part, dict) for part in parts):
        raise CheckpointError(f"{path} is not the config of a run")
    if "overrides" not in config:
        raise CheckpointError(
            f"{path} is of an older format; use this run with the version that wrote it"
        )
    return config


def model_config(node):
    config = from_dict(ModelConfig, node, "model.")
    check_numbers(flatten(asdict(config), "model."))
    return config


def read_tokenizer(folder):
    try:
        return tokenizer_from_state(read_json(folder / "tokenizer.json", MAX_TOKENIZER_BYTES))
    except ValueError as error:
        raise CheckpointError(f"{folder / 'tokenizer.json'} cannot be read: {error}") from None


def find_checkpoint(folder, which):
    """The folder of the checkpoint `which`: latest, best or a step."""
    root = folder / "checkpoints"
    names = [path.name for path in list_checkpoints(root)]
    if re.fullmatch("[0-9]{1,8}", str(which)):
        name = step_dir(int(which))
    elif which in ("latest", "best"):
        newest = names[0] if which == "latest" and names else None
        name = (
            read_pointer(root, which) or newest
        )  # a kill may have come between checkpoint and pointer
    else:
        raise ValueError(f"the checkpoint is {which!r:.60}; choose latest, best or a step")
    if name not in names:
        known = ", ".join(names) or "none"
        raise CheckpointError(f"{folder} has no checkpoint {(name or which)!r}; it has {known}")
    return root / name


def read_pointer(root, which):
    """The name of the checkpoint that latest or best points to, or None."""
    name = read_text(root / which).strip() if (root / which).exists() else None
    if name is not None and not STEP.fullmatch(name):
        raise CheckpointError(
            f"{root / which} is {name!r:.60}, not the name of a checkpoint; remove it"
        )
    return name


def whole_checkpoints(folder, errors):
    """Yield the undamaged checkpoints, newest first; what is wrong with the others goes to `errors`."""
    for checkpoint in list_checkpoints(folder):
        try:
            verify(checkpoint)
            yield checkpoint
        except CheckpointError as error:
            errors.append(str(error))


def verify(checkpoint):
    """Compare every file with its size and hash in manifest.json."""
    manifest = read_json(checkpoint / "manifest.json")
    if not isinstance(manifest, dict) or set(manifest) != FILES:
        raise CheckpointError(
            f"{checkpoint}: manifest.json does not list the files of a checkpoint"
        )
    for name, entry in manifest.items():
        with open_file(checkpoint / name) as file:
            size, digest = (
                os.fstat(file.fileno()).st_size,
                hashlib.file_digest(file, "sha256").hexdigest(),
            )
        if entry != {"bytes": size, "sha256": digest}:
            raise CheckpointError(
                f"{checkpoint / name} is damaged: it is not the file that was saved"
            )


def read_state(checkpoint):
    path = checkpoint / "state.json"
    values = read_json(path)
    version = values.get("format") if isinstance(values, dict) else None
    if version != FORMAT:
        reads = f"this version reads {FORMAT}; continue the run with the version that wrote it"
        raise CheckpointError(f"{path} has format {version!r:.60} and {reads}")
    if values.get("micro_batch_size", 0) is None:
        run = checkpoint.parents[1]
        raise CheckpointError(f"{run} was imported and not trained; init_from={run} trains from it")
    try:
        state = from_dict(StoredState, values)
        if state.scaler:
            from_dict(ScalerState, state.scaler, "scaler.")
    except ValueError as error:
        raise CheckpointError(f"{path}: {error}") from None
    if step_dir(state.step) != checkpoint.name:
        raise CheckpointError(f"{path} is of step {state.step}; it belongs to another checkpoint")
    return state


@contextmanager
def open_file(path):
    try:
        with open(path, "rb", opener=lambda path, flags: os.open(path, flags | PLAIN)) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise CheckpointError(f"{path} is not a regular file; remove it")
            yield file
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise CheckpointError(f"{path} cannot be read ({reason.lower()})") from None


def read_text(path, max_bytes=MAX_BYTES):
    with open_file(path) as file:
        data = file.read(max_bytes + 1)
        if len(data) > max_bytes:
            raise CheckpointError(
                f"{path} is larger than {max_bytes:,} bytes, the most it may have"
            )
        return data.decode()


def read_json(path, max_bytes=MAX_BYTES):
    try:
        return json.loads(read_text(path, max_bytes))
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} cannot be read ({error})") from None
