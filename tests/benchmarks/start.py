"""How long commands take to their first step, their first token or their end, beside `import torch`.

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

from tests.parts import ROOT
from tests.training.runs import TEXT

HELP = [
    "train.py",
    "sample.py",
    "-m data",
    "-m model.hub",
    "-m model.shapes",
    "-m training.compare",
]
TRAIN = "data=text data.path=book.txt tokenizer=byte train.steps=2 log.every=1"
COMMANDS = {"import torch": ["-c", "import torch"]}
COMMANDS |= {f"{name} --help": [*name.split(), "--help"] for name in HELP}
COMMANDS |= {"first step": ["train.py", *TRAIN.split()]}
COMMANDS |= {"first token": ["sample.py", "--prompt", "line", "--max-new-tokens", "1"]}
FIRST_STEP = b"step      1  loss"


def measure(command, folder):
    """(seconds, CPU seconds) of a command until its end or, in training, its first step."""
    arguments = [
        str(ROOT / argument) if argument.endswith(".py") else argument for argument in command
    ]
    environment, start, output = os.environ | {"PYTHONPATH": str(ROOT)}, time.perf_counter(), b""
    process = subprocess.Popen([sys.executable, *arguments], cwd=folder, env=environment,
                               stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)  # fmt: skip
    while FIRST_STEP not in output and (chunk := process.stdout.read1()):
        output += chunk
    if FIRST_STEP in output:
        process.kill()
    _, _, usage = os.wait4(process.pid, 0)
    process.returncode = 0
    return time.perf_counter() - start, usage.ru_utime + usage.ru_stime


def main(rounds=5):
    times = {name: [] for name in COMMANDS}
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "book.txt").write_text(100 * TEXT)
        subprocess.run(
            [sys.executable, ROOT / "train.py", *TRAIN.split()], cwd=folder, capture_output=True
        )
        for _ in range(rounds):
            for name, command in COMMANDS.items():
                times[name].append(measure(command, folder))
    for name, measured in times.items():
        line = f"{name:<26}"
        for unit, own, torch in zip(("s", "CPU s"), zip(*measured), zip(*times["import torch"])):  # noqa: B905
            line += f"{median(own):6.2f} {unit} ({min(own):.2f} to {max(own):.2f})"
            line += f", {median(own) / median(torch):.2f} of import torch  "
        print(line)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
