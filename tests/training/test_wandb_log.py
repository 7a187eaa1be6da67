"""What wandb gets, read from the files of its offline mode, and a service that fails or hangs."""

import json
import struct
import threading
from types import SimpleNamespace

from training.monitor import wandb_log
from training.monitor.wandb_log import WandbLogger

BLOCK = 1 << 15


def records(path):
    """The records of a .wandb file, in the log format of LevelDB (its doc/log_format.md)."""
    from wandb.proto.wandb_internal_pb2 import Record

    data, at, complete, parts = path.read_bytes(), 7, [], []
    while at + 7 <= len(data):
        if BLOCK - at % BLOCK < 7:
            at += BLOCK - at % BLOCK
        length, kind = struct.unpack("<HB", data[at + 4 : at + 7])
        parts.append(data[at + 7 : at + 7 + length])
        at += 7 + length
        if kind in (1, 4):  # complete, or the last part
            complete.append(Record.FromString(b"".join(parts)))
            parts = []
    return complete


def history(folder):
    [path] = folder.glob("wandb/offline-run-*/*.wandb")
    rows = []
    for record in records(path):
        if record.WhichOneof("record_type") == "history":
            items = record.history.item
            rows.append(
                {item.key or ".".join(item.nested_key): json.loads(item.value_json) for item in items}
            )
    return rows


def test_offline_mode_gets_every_row(run):
    folder = run("wandb.mode=offline", "log.every=1", "sample.every=2", "eval.every=2")
    logged = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    sent = history(folder)
    for name in ("loss", "val_loss", "val_bpb", "lr"):  # of several rows of a step, wandb keeps the last
        expected = {row["step"]: row[name] for row in logged if name in row}
        assert {row["_step"]: row[name] for row in sent if name in row} == expected
    last = [row["samples.path"] for row in sent if "samples.path" in row][-1]
    [table] = folder.glob(f"wandb/offline-run-*/files/{last}")
    samples = [json.loads(line) for line in (folder / "samples.jsonl").read_text().splitlines()]
    assert json.loads(table.read_text())["data"] == [list(sample.values()) for sample in samples]


def test_a_resumed_run_keeps_its_id(tmp_path, monkeypatch):
    options = []
    monkeypatch.setattr("wandb.init", lambda **given: options.append(given) or SimpleNamespace(finish=int))
    for _ in range(2):
        WandbLogger(SimpleNamespace(mode="online", project="x"), tmp_path, {}).close()
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
    assert code == 0 and errors.count("warning: wandb does not respond; metrics.jsonl is complete") == 1
