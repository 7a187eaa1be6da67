"""What each experiment comes to on this machine: process time, time of training, and its last evaluation.

OMP_NUM_THREADS=2 python -m tests.benchmarks.experiments default shakespeare_char reverse
"""

import json
import re
import subprocess
import sys
import time

from tests.parts import ROOT

FIELDS = ("val_loss", "val_bpb", "val_accuracy", "val_exact", "val_loss_other_source")


def measure(name, words):
    chosen = [] if name == "default" else [f"experiment={name}"]
    began = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "train.py", *chosen, *words], cwd=ROOT, capture_output=True, text=True, check=True
    )
    seconds = time.perf_counter() - began
    folder = re.search(r"kept in (\S+),", done.stdout)[1]
    rows = [json.loads(line) for line in (ROOT / folder / "metrics.jsonl").read_text().splitlines()]
    last = rows[-1]
    trained = max(row["seconds"] for row in rows if not row.get("full"))
    found = "  ".join(f"{field} {last[field]:.3f}" for field in FIELDS if field in last)
    print(
        f"{name:<18} process {seconds:6.1f} s  training {trained:6.1f} s  {last['step']:>5} steps  {found}",
        flush=True,
    )
    return done.stdout


def main(words):
    names = [word for word in words if "=" not in word]
    for name in names:
        said = measure(name, [word for word in words if "=" in word])
    print("\n".join(line for line in said.splitlines() if "xz" in line or "gzip" in line))


if __name__ == "__main__":
    main(sys.argv[1:])
