"""What goes to wandb, read back from the files of its offline mode; and a server that does not answer."""

import json
import struct
import time

from training.monitor import wandb_log as remote

BLOCK = 1 << 15


def records(path):
    """The records of a .wandb file, in the log format of LevelDB (its doc/log_format.md)."""
    from wandb.proto.wandb_internal_pb2 import Record

    data, at, found, parts = path.read_bytes(), 7, [], []
    while at + 7 <= len(data):
        if BLOCK - at % BLOCK < 7:
            at += BLOCK - at % BLOCK
        length, kind = struct.unpack("<HB", data[at + 4 : at + 7])
        parts.append(data[at + 7 : at + 7 + length])
        at += 7 + length
        if kind in (1, 4):  # whole, or the last part
            found.append(Record.FromString(b"".join(parts)))
            parts = []
    return found


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


def test_offline_keeps_all_that_a_run_tells(run):
    folder = run("wandb.mode=offline", "log.every=1", "sample.every=2", "eval.every=2")
    told = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    sent = history(folder)
    for field in ("loss", "val_loss", "val_bpb", "lr"):  # of rows of one step, wandb keeps the last
        expected = {row["step"]: row[field] for row in told if field in row}
        assert {row["_step"]: row[field] for row in sent if field in row} == expected
    last = [row["samples.path"] for row in sent if "samples.path" in row][-1]
    [table] = folder.glob(f"wandb/offline-run-*/files/{last}")
    shown = [json.loads(line) for line in (folder / "samples.jsonl").read_text().splitlines()]
    assert json.loads(table.read_text())["data"] == [list(sample.values()) for sample in shown]


def test_a_resumed_run_keeps_its_id(run, monkeypatch):
    begun = []
    folder = run("wandb.mode=offline")
    monkeypatch.setattr("wandb.init", lambda **settings: begun.append(settings))
    remote.WandbLogger(type("Wandb", (), {"mode": "offline", "project": "x"}), folder, {}).close()
    assert (
        begun[0]["id"] in str(next(folder.glob("wandb/offline-run-*/*.wandb")))
        and begun[0]["resume"] == "allow"
    )


def test_no_key_costs_one_warning(start, monkeypatch):
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    code, _, said = start("wandb.mode=online", "train.steps=2")
    assert code == 0 and said.count("warning: wandb is left out") == 1


def test_a_server_that_hangs_never_delays_a_step(start, monkeypatch):
    """Rows are offered and go on; the end waits for a while and no longer."""
    monkeypatch.setattr(remote.WandbLogger, "begin", lambda self: time.sleep(30))
    monkeypatch.setattr(remote, "PATIENCE", 0.1)
    began = time.perf_counter()
    code, _, said = start("wandb.mode=online", "train.steps=2", "log.every=1")
    assert code == 0 and said.count("it does not answer; what it lacks is in metrics.jsonl") == 1
    assert time.perf_counter() - began < 25
