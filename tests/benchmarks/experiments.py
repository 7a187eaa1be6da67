"""The results of experiments on this machine: times of process and training, last evaluation.

OMP_NUM_THREADS=2 python -m tests.benchmarks.experiments default shakespeare_char reverse
"""

import re
import subprocess
import sys
import time

from tests.parts import ROOT
from training.log import read_rows


def measure(name, overrides):
    experiment = [] if name == "default" else [f"experiment={name}"]
    command = [sys.executable, "train.py", *experiment, *overrides]
    start = time.perf_counter()
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    process = time.perf_counter() - start
    run = re.search(r"saved to (\S+),", done.stdout)[1]
    rows = list(read_rows(ROOT / run / "metrics.jsonl"))
    training = max(row["seconds"] for row in rows if not row.get("full"))
    print(f"{name}: process {process:.1f} s, training {training:.1f} s, {rows[-1]['step']} steps")
    results = [f"{key} {value:.3f}" for key, value in rows[-1].items() if key.startswith("val_")]
    print("   ", "  ".join(results), flush=True)
    for line in done.stdout.splitlines():
        if line.startswith(("gzip", "xz")):
            print("   ", line)


def main(args):
    overrides = [arg for arg in args if "=" in arg]
    for name in args:
        if name not in overrides:
            measure(name, overrides)


if __name__ == "__main__":
    main(sys.argv[1:])
