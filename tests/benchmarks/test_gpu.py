"""The checks of tests/benchmarks/gpu run to their end on a CPU, and none can stop the others."""

import json
import os
import subprocess
import sys
from threading import Event

import pytest

from tests.benchmarks.gpu.__main__ import CHECKS, run_check
from tests.parts import ROOT

# other checks differ from these in their settings alone
ALIKE = {"eager", "fitted", "muon", "llama_350m", "resume"}
NAMES = [name for name in CHECKS if name not in ALIKE]


@pytest.mark.faults
def test_every_kind_of_check_runs_on_a_cpu():
    command = [sys.executable, "-m", "tests.benchmarks.gpu", "--tiny", "--only", *NAMES]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    *rows, summary = map(json.loads, done.stdout.splitlines())
    assert done.returncode == 0, f"{summary}\n{done.stderr[-3000:]}"
    assert [row["check"] for row in rows] == NAMES and not summary["failed"]
    resumed = rows[-1]
    assert resumed["stopped_early"] and resumed["repeats"] and resumed["resumes"]


def hangs(bench):
    yield {"found": 2}
    Event().wait()


def dies(bench):
    yield {"found": 3}
    os._exit(1)


@pytest.mark.filterwarnings("ignore:.*fork")
def test_a_check_that_fails_costs_only_itself(monkeypatch):
    for check, reason in {hangs: "more than", dies: "died"}.items():
        monkeypatch.setitem(CHECKS, "environment", (check, 0.25))
        row = run_check("environment", tiny=True)
        assert reason in row["error"] and row["found"] and not row["ok"]
