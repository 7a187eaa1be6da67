"""The overrides of a small run, and what is read from its folder."""

import json
import os
import subprocess
import sys

import torch

from tests.parts import ROOT

TEXT = "".join(f"line {i} of a text, don't {i * i}\n" for i in range(400))
USUAL = ["size=tiny", "model.context_length=32", "tokenizer=byte", "data=text", "data.path=book.txt",
         "train.steps=4", "train.batch_size=4", "eval.max_examples=4", "precision=fp32"]  # fmt: skip


def torchrun_environment(rank, port, n=2):
    """What torchrun gives to one of n processes; their store, a TCPStore, is in another one."""
    environment = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": n, "TORCHELASTIC_RESTART_COUNT": 0,
                   "OMP_NUM_THREADS": 1}  # fmt: skip
    environment |= {
        "MASTER_ADDR": "localhost",
        "MASTER_PORT": port,
        "TORCHELASTIC_USE_AGENT_STORE": True,
    }
    return {name: str(value) for name, value in environment.items()}


def with_usual(overrides):
    """The overrides, after those of USUAL that they do not replace."""
    replaced = {override.partition("=")[0] for override in overrides}
    if replaced & {"data", "experiment"}:
        replaced.add("data.path")
    return [*(usual for usual in USUAL if usual.partition("=")[0] not in replaced), *overrides]


def rows(folder, *names):
    """The values of these names in each row of metrics.jsonl that has all of them."""
    logged = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    return [tuple(row[name] for name in names) for row in logged if set(names) <= set(row)]


def weights(folder, step=4):
    return (folder / f"checkpoints/step-{step:08}/model.safetensors").read_bytes()


def start_processes(n, overrides):
    """The exit codes of n processes that share a run."""
    store = torch.distributed.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    command = [sys.executable, str(ROOT / "train.py"), *overrides]
    ranks = [os.environ | torchrun_environment(rank, store.port, n) for rank in range(n)]
    environment = {"OMP_NUM_THREADS": "1"}
    processes = [
        subprocess.Popen(command, env=rank | environment, stdout=subprocess.DEVNULL)
        for rank in ranks
    ]
    return [process.wait(timeout=300) for process in processes]
