"""Everything that only a GPU can show, in one call of at most 8 minutes; --tiny runs all of it on a CPU.

    python -m tests.benchmarks.gpu [--only speed large] > gpu.jsonl

Prints a line of JSON for each check and one at the end, and needs torch, numpy, PyYAML and safetensors alone.
The checks run in a second process, which is replaced if it dies, takes too long or raises: an error may leave
CUDA unusable. What a check had found by then is printed with the error.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import time
import traceback
from contextlib import suppress
from threading import Timer

from model.precision import choose_device, choose_precision
from tests.benchmarks.gpu import correctness, speed
from tests.benchmarks.gpu.setup import Bench, release

CHECKS = {  # name: (check, the most seconds it may take); what is quick comes first
    "environment": (speed.environment, 40),
    "numerics": (correctness.numerics, 60),
    "attention": (speed.attention, 45),
    "compilation": (speed.compilation, 100),
    "fp16": (correctness.fp16, 30),
    "distributed": (correctness.distributed, 60),
    "fitting": (correctness.fitting, 40),
    "decoding": (speed.decoding, 40),
    "loss": (speed.loss, 40),
    "speed": (speed.speed, 130),
    "transformers": (speed.transformers, 80),
    "large": (speed.large, 130),
    "repeat": (correctness.repeat, 100),
}
START_SECONDS = 120  # of a process, with its imports


def rounded(value):
    if isinstance(value, dict):
        return {key: rounded(item) for key, item in value.items()}
    return float(f"{value:.4g}") if isinstance(value, float) else value


def work(bench):
    """The second process: reads names of checks, and writes lines of figures and one with `done` for each."""
    out = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # a compiler may print
    choose_precision(bench.device, "auto")  # as in a run
    print(json.dumps({"ready": True}), file=out)
    for name in map(str.strip, sys.stdin):
        try:
            for figures in CHECKS[name][0](bench):
                print(json.dumps(rounded(figures)), file=out)
            answer = {"done": True}
        except Exception as error:
            traceback.print_exc()
            answer = {"done": True, "error": f"{type(error).__name__}: {error}"[:300]}
        print(json.dumps(answer), file=out)
        release()


class Worker:
    def __init__(self, options):
        command = [sys.executable, "-m", "tests.benchmarks.gpu", "--worker", *options]
        environ = os.environ | {
            "CUBLAS_WORKSPACE_CONFIG": ":4096:8"
        }  # its default, but deterministic
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "bufsize": 1}
        self.process = subprocess.Popen(command, env=environ, start_new_session=True, **pipes)

    def answers(self, limit, last):
        """The lines up to the one that has the key `last`; after the limit, the process is killed."""
        timer = Timer(limit, self.kill)
        timer.start()
        try:
            for line in self.process.stdout:
                yield (answer := json.loads(line))
                if last in answer:
                    return
        finally:
            timer.cancel()
        yield {"error": f"the process ended: it died, or was killed after {limit:.0f} s"}

    def check(self, name, limit):
        row, failed, start = {"check": name, "ok": True, "seconds": None}, [], time.perf_counter()
        with suppress(BrokenPipeError):  # then there are no answers either
            self.process.stdin.write(f"{name}\n")
        for answer in self.answers(limit, "done"):
            failed += answer.pop("failed", [])
            row |= answer
        row.pop("done", None)
        row["ok"] = None if "skipped" in row else not (failed or "error" in row)
        return (
            row
            | {"seconds": round(time.perf_counter() - start, 1)}
            | ({"failed": failed} if failed else {})
        )

    def kill(self):
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)  # with the processes of its compiler

    def close(self):
        self.kill()
        with suppress(BrokenPipeError), self.process:
            pass


def run(names, options, deadline):
    """The row of each check."""
    worker = None
    try:
        for name in names:
            left = deadline - time.monotonic()
            if left < 10:
                yield {
                    "check": name,
                    "ok": None,
                    "skipped": "no time is left; see --only and --minutes",
                }
                continue
            if not worker:
                worker = Worker(options)
                list(
                    worker.answers(START_SECONDS, "ready")
                )  # if there are none, the check will say so
            limit = CHECKS[name][1] * (10 if "--tiny" in options else 1)  # a CPU may be slow
            row = worker.check(name, min(limit, left))
            yield row
            if "error" in row:
                worker.close()
                worker = None
    finally:
        if worker:
            worker.close()


def main():
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.gpu")
    parser.add_argument("--only", nargs="+", choices=CHECKS, default=list(CHECKS), metavar="CHECK")
    parser.add_argument("--tiny", action="store_true", help="tiny models, on any device")
    parser.add_argument("--minutes", type=float, default=8.0)
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    device = choose_device("auto" if args.tiny else "cuda")
    if args.worker:
        tiny = {"vocab_size": 64, "backend": "inductor" if device.type == "cuda" else "eager"}
        work(Bench(device, args.tiny, **(tiny if args.tiny else {})))
        return
    start, rows = time.monotonic(), {}
    for row in run(args.only, ["--tiny"] * args.tiny, start + 60 * args.minutes):
        rows[row["check"]] = row
        print(json.dumps(row), flush=True)
    verdicts = {
        ok: [name for name, row in rows.items() if row["ok"] is ok] for ok in (True, False, None)
    }
    summary = {"passed": verdicts[True], "failed": verdicts[False], "skipped": verdicts[None]}
    judged = "not judged: the models are tiny" if args.tiny else speed.targets(rows)
    seconds = round(time.monotonic() - start, 1)
    row = {
        "check": "summary",
        "ok": not verdicts[False],
        "seconds": seconds,
        **summary,
        "targets": judged,
    }
    print(json.dumps(row))
    sys.exit(bool(verdicts[False]))


if __name__ == "__main__":
    main()
