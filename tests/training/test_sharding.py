"""One run, whether alone, with DDP or sharded: the same numbers, and checkpoints that all can resume."""

import os
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from safetensors.torch import save as safetensors_of
from torch.distributed.tensor import DTensor

from configs.compose import compose
from configs.registry import build
from model.checkpoint.save import model_tensors
from model.precision import Precision
from model.transformer import build_model
from tests.parts import tokens
from tests.training.runs import rows, start_processes, torchrun_environment, weights, with_usual
from training.distributed import init_distributed
from training.optimizer import OPTIMIZERS
from training.sharding import shard, whole, write_parts
from training.step import LossModule

RUN = [
    "train.batch_size=8",
    "model.dropout=0",
    "log.every=1",
    "checkpoint.every=10",
    "sample.every=10",
]
MODELS = {  # uneven numbers of targets in bert and t5; Muon amplifies rounding, as with DDP
    "model=gpt2 optimizer=adamw train.micro_batch_size=1": 1e-5,
    "model=bert optimizer=adamw train.micro_batch_size=2": 1e-5,
    "model=t5 optimizer=adamw train.micro_batch_size=2": 2e-3,  # rounding, which grows after ten steps
    "model=t5 optimizer=adamw data=synthetic data.size=500": 1e-5,
    "model=modern train.micro_batch_size=2": 1e-2,
}


def numbers(folder):
    names = (
        "loss",
        "grad_norm",
        "val_loss",
        "val_accuracy",
        "val_exact_match",
        "val_loss_shuffled_source",
    )
    return [value for name in names for value in rows(folder, "step", name)]


def tensors(folder, step=20):
    checkpoint = folder / f"checkpoints/step-{step:08}"
    return load_file(checkpoint / "model.safetensors") | load_file(
        checkpoint / "optimizer.safetensors"
    )


@pytest.mark.faults
@pytest.mark.parametrize("overrides", MODELS)
def test_ddp_and_fsdp_are_the_run_alone(run, overrides):
    usual = with_usual([*overrides.split(), *RUN, "train.steps=20"])
    alone = run(*usual, "name=none")
    for parallel in ("ddp", "fsdp"):
        assert start_processes(2, [*usual, f"name={parallel}", f"parallel={parallel}"]) == [0, 0]
        for one, two in zip(numbers(alone), numbers(Path("runs", parallel)), strict=True):
            early = "adamw" in overrides and one[0] < 10
            assert one == pytest.approx(two, rel=1e-5 if early else MODELS[overrides], abs=1e-6)
    if "adamw" in overrides:
        stored = tensors(Path("runs/fsdp"))
        assert all(torch.allclose(t, stored[name], atol=1e-4) for name, t in tensors(alone).items())


@pytest.mark.faults
def test_a_run_resumes_with_any_number_of_processes(start):
    """Each continues from a checkpoint of the one before, and comes to the same end up to rounding."""
    overrides = ["model=gpt2", "optimizer=adamw", *RUN, "train.steps=20", "checkpoint.every=4"]
    assert start(*overrides, "checkpoint.keep=5", "name=whole")[0] == 0
    folder = Path(shutil.copytree("runs/whole", "runs/other"))
    for step, n, parallel in ((4, 2, "fsdp"), (8, 4, "fsdp"), (12, 2, "ddp"), (16, 1, "none")):
        (folder / "checkpoints/latest").write_text(f"step-{step:08}\n")
        (folder / "checkpoints/best").unlink()
        for later in range(step + 4, 21, 4):
            shutil.rmtree(folder / f"checkpoints/step-{later:08}")
        command = ["name=other", "resume=true", f"parallel={parallel}"]
        codes = start_processes(n, command) if n > 1 else [start.plainly(*command)[0]]
        assert codes == [0] * n
        for one, two in zip(numbers(Path("runs/whole")), numbers(folder), strict=True):
            assert one == pytest.approx(two, rel=1e-5)


def check_states(rank, port, n, name, folder):
    """After a step this process has 1/n of all states, and writes them into files that all write."""
    os.environ |= torchrun_environment(rank, port, n)
    dist, device = init_distributed(torch.device("cpu"), "fsdp", 60)
    config = compose(["model=bert", "size=tiny", f"optimizer={name}"])
    loss_module = LossModule(build_model(config.model, 258, seed=0))
    shard(loss_module, Precision(device, torch.float32, ""))
    model = loss_module.model
    optimizer = build("optimizer", OPTIMIZERS, config.optimizer, {"model": model})
    loss_module({"tokens": tokens(2, 8, seed=rank)}, tokens(2, 8), 16).backward()
    gradients = {name: p.grad for name, p in model.named_parameters()}
    for torch_optimizer in optimizer.optimizers:
        torch_optimizer.step()
    parts = {
        "model": model_tensors(model),
        "gradients": gradients,
        "optimizer": optimizer.tensors(),
    }
    for part, tensors in parts.items():
        sharded = [tensor for tensor in tensors.values() if isinstance(tensor, DTensor)]
        kept = {
            t.to_local().untyped_storage().data_ptr(): t.to_local().untyped_storage()
            for t in sharded
        }
        size = sum(tensor.nbytes for tensor in sharded)
        share = n * sum(storage.nbytes() for storage in kept.values()) / size
        assert 0.9 < share < 1.1 and size > 0.99 * sum(t.nbytes for t in tensors.values()), (
            part,
            share,
        )
        write_parts(folder / part, tensors, *dist.share)
        expected = {name: whole(tensor.detach()) for name, tensor in tensors.items()}
        torch.distributed.barrier()
        assert (folder / part).read_bytes() == safetensors_of(expected, {"format": "pt"})


@pytest.mark.parametrize(
    ("n", "name"), [(2, "muon"), pytest.param(4, "adamw", marks=pytest.mark.faults)]
)
def test_each_process_keeps_and_writes_its_part_of_all_states(tmp_path, n, name):
    """Of a tensor of two rows, two of four processes have none. Processes are not forked: threads of earlier
    tests may hold locks."""
    store = torch.distributed.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    torch.multiprocessing.start_processes(
        check_states, (store.port, n, name, tmp_path), n, start_method="spawn"
    )


def test_recomputing_blocks_changes_no_bit(run):
    usual = ["model=t5", "model.dropout=0.1", "precision=bf16"]
    assert weights(run(*usual)) == weights(run(*usual, "train.recompute=block"))


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["parallel=fsdp"], "parallel=fsdp needs several processes"),
        (["parallel=sharded"], "expected one of: auto, none, ddp, fsdp"),
    ],
)
def test_what_cannot_be_is_said(start, overrides, message):
    code, _, errors = start(*overrides)
    assert code == 2 and message in errors and "Traceback" not in errors
