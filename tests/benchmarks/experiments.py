"""The results of experiments on this machine: time of the process, time of training, and the last evaluation.

OMP_NUM_THREADS=2 python -m tests.benchmarks.experiments default shakespeare_char reverse
"""

import json
import re
import subprocess
import sys
import time

from tests.parts import ROOT


def measure(name, overrides):
    experiment = [] if name == "default" else [f"experiment={name}"]
    start = time.perf_counter()
    command = [sys.executable, "train.py", *experiment, *overrides]
    out = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True).stdout
    process = time.perf_counter() - start
    folder = re.search(r"saved to (\S+),", out)[1]
    rows = [json.loads(line) for line in (ROOT / folder / "metrics.jsonl").read_text().splitlines()]
    training = max(row["seconds"] for row in rows if not row.get("full"))
    print(f"{name}: process {process:.1f} s, training {training:.1f} s, {rows[-1]['step']} steps")
    results = [f"{key} {value:.3f}" for key, value in rows[-1].items() if key.startswith("val_")]
    print("   ", "  ".join(results), flush=True)
    print(
        "".join(f"    {line}\n" for line in out.splitlines() if re.match("gzip|xz", line)), end=""
    )


def main(args):
    for name in args:
        if "=" not in name:
            measure(name, [arg for arg in args if "=" in arg])


if __name__ == "__main__":
    main(sys.argv[1:])
