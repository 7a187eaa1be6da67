"""Everything that only a GPU can show; --tiny runs all of it on a CPU.

    python -m tests.benchmarks.gpu [--only compiled resume] > gpu.jsonl

Trains as users do, by the command line of train.py, on a random text in a temporary folder. Prints
a line of JSON for each check and one at the end. Each check is a process of its own: if it fails,
dies or takes too long, the others go on, and what it had found is printed with the error.
"""

import argparse
import json
import multiprocessing
import os
import shutil
import signal
import sys
import tempfile
import time
import traceback
from contextlib import suppress
from importlib import import_module

from tests.benchmarks.gpu import checks
from tests.benchmarks.gpu.bench import Bench, write_text

SMALLER = "train.micro_batch_size=16"
CHECKS = {  # name: (check, the most seconds it may take, its overrides)
    "environment": (checks.environment, 60),
    "numerics": (checks.numerics, 120),
    "compilation": (checks.compilation, 150),
    "precisions": (checks.precisions, 150),
    "distributed": (checks.shared, 120),
    "fitting": (checks.fitting, 120),
    "decoding": (checks.decoding, 120),
    "choices": (checks.choices, 900),
    "eager": (checks.training, 90, "compile=false", SMALLER),
    "compiled": (checks.training, 150, SMALLER),
    "fitted": (checks.training, 150),
    "muon": (checks.training, 150, "optimizer=muon", SMALLER),
    "llama_350m": (checks.training, 200, "model=llama", "size=350m", "train.batch_size=32"),
    "resume": (checks.resume, 200),
    "resume_deterministic": (checks.resume, 200, "deterministic=true"),
}


def perform(name, tiny, log):
    """The process of a check: writes its figures, and an error if there is one."""
    os.setsid()  # to be killed with the processes of its compiler
    check, _, *overrides = CHECKS[name]
    sys.stdout = sys.stderr  # a run prints
    try:
        for figures in check(Bench(tiny), *overrides):
            print(json.dumps(figures), file=log, flush=True)
    except BaseException as error:  # also SystemExit, of a run that has told why
        traceback.print_exc()
        print(json.dumps({"error": f"{error!r:.300}"}), file=log, flush=True)
    os._exit(0)  # freeing a process group can deadlock


def run_check(name, tiny):
    """The row of a check."""
    check_limit = CHECKS[name][1]
    limit = 4 * check_limit if tiny else check_limit  # a CPU may be slow
    row = {"check": name, "ok": True, "failed": []}
    context = multiprocessing.get_context("fork")  # the imports are done, and no GPU is in use
    with tempfile.TemporaryFile("w+") as log:
        process = context.Process(target=perform, args=(name, tiny, log))
        start = time.monotonic()
        process.start()
        process.join(limit)
        code = process.exitcode
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.join()
        log.seek(0)
        for line in log:
            figures = json.loads(line)
            row["failed"] += figures.pop("failed", [])
            row |= figures
    if code is None:
        row["error"] = f"it took more than {limit:.0f} s"
    elif code != 0:
        row["error"] = "its process died"
    row["ok"] = not row["failed"] and "error" not in row
    row["seconds"] = round(time.monotonic() - start, 1)
    return row


def main():
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.gpu")
    parser.add_argument("--only", nargs="+", choices=CHECKS, default=CHECKS, metavar="CHECK")
    parser.add_argument("--tiny", action="store_true", help="tiny models, on a CPU")
    args = parser.parse_args()
    os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"  # to ask for GPUs opens none, for the forks
    for slow in ("torch._dynamo", "matplotlib.pyplot"):  # once, for all processes
        import_module(slow)
    failed = []
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        write_text(args.tiny)
        for name in args.only:
            row = run_check(name, args.tiny)
            print(json.dumps(row), flush=True)
            failed += [] if row["ok"] else [name]
            shutil.rmtree("runs", ignore_errors=True)
        os.chdir("/")
    print(json.dumps({"check": "summary", "failed": failed}))
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
