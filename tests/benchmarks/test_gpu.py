"""The checks of tests/benchmarks/gpu run to their end on a CPU, and none can stop the others."""

import json
import subprocess
import sys

import pytest

from tests.benchmarks.gpu.__main__ import CHECKS
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
