"""What wandb gets in its offline mode, and a service that fails or hangs."""

import json
import threading
from pathlib import Path
from types import SimpleNamespace

import wandb

from configs.compose import compose
from training.monitor import wandb_log
from training.monitor.wandb_log import WandbLogger


def test_offline_mode_gets_every_row(start, monkeypatch):
    init, sent = wandb.init, []

    def recorded(**options):
        run = init(**options)
        log = run.log
        monkeypatch.setattr(
            run, "log", lambda row, step: sent.append({"step": step, **row}) or log(row, step)
        )
        return run

    monkeypatch.setattr("wandb.init", recorded)
    code, _, errors = start(
        "wandb.mode=offline", "log.every=1", "sample.every=2", "eval.every=2", "name=logged"
    )
    assert code == 0 and "wandb" not in errors
    rows, samples = (
        [json.loads(line) for line in Path(f"runs/logged/{name}.jsonl").read_text().splitlines()]
        for name in ("metrics", "samples")
    )
    assert [row for row in sent if "samples" not in row] == rows
    tables = [row["samples"] for row in sent if "samples" in row]
    assert tables[-1].columns == list(samples[-1])
    assert tables[-1].data == [list(sample.values()) for sample in samples]
    [path] = Path("runs/logged").glob("wandb/offline-run-*/*.wandb")
    assert all(name in path.read_bytes() for name in (b"val_bpb", b"grad_norm", b"table-file"))


def test_a_resumed_run_keeps_its_id(tmp_path, monkeypatch):
    options = []
    monkeypatch.setattr(
        "wandb.init", lambda **given: options.append(given) or SimpleNamespace(finish=int)
    )
    for _ in range(2):
        WandbLogger(compose(["wandb.mode=online"]), tmp_path).close()
    assert options[0]["id"] == options[1]["id"] and options[0]["resume"] == "allow"


def test_a_failing_service_costs_one_warning(start, monkeypatch):
    def init(**options):
        raise ConnectionError("refused\nand more")

    monkeypatch.setattr("wandb.init", init)
    code, _, errors = start("wandb.mode=online", "train.steps=2", "log.every=1")
    assert code == 0 and errors.count("warning: wandb") == 1
    assert "wandb logging stopped (ConnectionError: refused)" in errors


def test_a_hanging_service_does_not_stop_the_run(start, monkeypatch):
    """No step waits for it, and the end of the run only for FLUSH_TIMEOUT."""
    released = threading.Event()
    service = SimpleNamespace(log=lambda row, step: None, finish=int)
    monkeypatch.setattr("wandb.init", lambda **options: released.wait() and service)
    monkeypatch.setattr(wandb_log, "FLUSH_TIMEOUT", 0.01)
    code, _, errors = start("wandb.mode=online", "train.steps=2", "log.every=1")
    released.set()
    assert (
        code == 0
        and errors.count("warning: wandb does not respond; metrics.jsonl is complete") == 1
    )
