"""How long it takes to a first step or a first token, beside `import torch`.

    OMP_NUM_THREADS=2 python -m tests.benchmarks.start [rounds]

CPU seconds (user and system) say more than wall-clock time on a machine that is not alone.
"""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from tests.benchmarks._turns import spread, take_turns
from tests.parts import ROOT

TRAIN = "train.py data=text data.path=book.txt tokenizer=byte train.steps=2 log.every=1"
COMMANDS = {
    "import torch": ["-c", "import torch"],
    "first step": TRAIN.split(),
    "first token": ["sample.py", "--prompt", "line", "--max-new-tokens", "1"],
}
FIRST_STEP = b"step      1  loss"


def measure(command, folder):
    """(seconds, CPU seconds) of a command until its end or, in training, its first step."""
    arguments = [str(ROOT / word) if word.endswith(".py") else word for word in command]
    process = subprocess.Popen(
        [sys.executable, *arguments],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    start = time.perf_counter()
    for line in process.stdout:
        if line.startswith(FIRST_STEP):
            process.kill()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode > 0:
        raise RuntimeError(f"{' '.join(command)} ended with {process.returncode}")
    return time.perf_counter() - start, usage.ru_utime + usage.ru_stime


def main(rounds=5):
    with tempfile.TemporaryDirectory() as folder:
        lines = [f"line {i} of a text, don't {i * i}\n" for i in range(40_000)]
        Path(folder, "book.txt").write_text("".join(lines))
        train = [sys.executable, ROOT / "train.py", *TRAIN.split()[1:]]
        subprocess.run(train, cwd=folder, capture_output=True)  # a run to sample from
        times = take_turns(COMMANDS, rounds, lambda name: measure(COMMANDS[name], folder))
    for name, measured in times.items():
        parts = [f"{name:<14}"]
        for i, unit in enumerate(("s", "CPU s")):
            seconds = [pair[i] for pair in measured]
            ratio = median(seconds) / median(pair[i] for pair in times["import torch"])
            parts.append(f"{spread(seconds)} {unit}, {ratio:.2f} of import torch")
        print("   ".join(parts))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
