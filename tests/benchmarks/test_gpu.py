"""The checks of tests/benchmarks/gpu run to their end on a CPU, without most libraries."""

import json
import os
import subprocess
import sys
import time

import pytest
import torch

from configs.compose import compose
from tests.benchmarks import versions
from tests.benchmarks.gpu import speed
from tests.benchmarks.gpu.__main__ import CHECKS, run
from tests.benchmarks.gpu.setup import Bench, model_config, part
from tests.parts import ROOT, names

MISSING = "hydra omegaconf antlr4 datasets wandb tiktoken tiktoken_ext tokenizers transformers"
MISSING += " huggingface_hub pyarrow rich requests matplotlib"
BLOCKER = f"""
import sys
class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {MISSING.split()}:
            raise ImportError(f"{{name}} is blocked")
sys.meta_path.insert(0, Blocker())
"""


@pytest.mark.parametrize("preset", names("model"))
def test_configs_are_those_of_hydra(preset):
    assert (
        model_config(preset, "124m")
        == compose([f"model={preset}", "size=124m", "model.dropout=0"]).model
    )


@pytest.mark.parametrize("name", names("optimizer"))
def test_optimizers_are_those_of_hydra(name):
    assert part("optimizer", name) == compose([f"optimizer={name}"]).optimizer


def test_every_check_runs_on_a_cpu_without_hydra(tmp_path):
    (tmp_path / "sitecustomize.py").write_text(BLOCKER)  # of the second process, too
    command = [sys.executable, "-m", "tests.benchmarks.gpu", "--tiny", "--minutes", "60"]
    environ = os.environ | {"PYTHONPATH": str(tmp_path), "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True)
    *rows, summary = map(json.loads, done.stdout.splitlines())
    assert done.returncode == 0, f"{summary}\n{done.stderr[-3000:]}"
    assert [row["check"] for row in rows] == list(CHECKS)
    assert all(row["ok"] or row["skipped"] for row in rows)
    assert summary["skipped"] == ["transformers"] and len(summary["passed"]) == len(CHECKS) - 1


@pytest.mark.faults
def test_a_check_that_takes_too_long_costs_only_itself(monkeypatch):
    monkeypatch.setitem(CHECKS, "numerics", (None, 0.0))
    slow, next_one = run(["numerics", "environment"], ["--tiny"], time.monotonic() + 1000)
    assert slow["ok"] is False and "killed" in slow["error"]
    assert next_one["ok"] is True and next_one["torch"] == torch.__version__


@pytest.mark.faults
@pytest.mark.filterwarnings("ignore")  # of the compiler
def test_steps_of_transformers_are_timed_beside_ours():
    figures = list(speed.transformers(Bench(torch.device("cpu"), True, 64, "eager")))
    assert figures[-1]["ratio"] > 0


def test_targets():
    rows = {"speed": {"ok": True, "compiled_16": {"mfu": 0.4}, "compiled_32": {"mfu": 0.6}}}
    rows |= {
        "transformers": {"ok": True, "ratio": 1.1},
        "large": {"ok": False, "1.4b_adamw": {"mfu": 0.7}},
    }
    verdicts = {name: target["verdict"] for name, target in speed.targets(rows).items()}
    assert list(verdicts.values()) == ["met", "missed", "not measured"]


@pytest.mark.filterwarnings("ignore")
def test_versions(capsys):
    assert versions.main("eager")
    row = json.loads(capsys.readouterr().out)
    assert row["torch"] == torch.__version__
    assert row["gpt2"]["graphs"] == 1 and not row["modern"]["recompiled"]
