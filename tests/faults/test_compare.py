"""training.compare reads untrusted run folders: it ends with a table, or with one sentence and code 4."""

import json
import os
import resource
import shutil
import signal
from pathlib import Path

import pytest

from configs.cli import run_command
from training.compare import main

ALIASES = "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 10))
CONFIGS = [
    b"a0: &a0 [x]\n" + ALIASES.encode(),
    b"[1, 2]",
    b"seed:\t1\n\t- x",
    b"seed: !!python/object/apply:os.system ['touch marker']",
    b"[" * 300,
    b"".join(b" " * n + b"a:\n" for n in range(300)),
    b"seed: 2024-01-02\nmodel: {}",
    b"\xff\xfe",
    b"",
    b"text",
    b"model: {kind: decoder}",
]


@pytest.fixture
def compare(folder, capsys):
    """compare(*folders) -> (exit code, stdout, stderr), in limited time"""

    def compare(*folders):
        signal.alarm(20)
        code = run_command(main, [str(folder) for folder in folders])
        signal.alarm(0)
        return code, *capsys.readouterr()

    before = signal.signal(signal.SIGALRM, lambda *_: pytest.fail("it is blocked"))
    yield compare
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("config", CONFIGS, ids=lambda text: repr(text[:20]))
def test_a_config_is_refused(folder, compare, config):
    (folder / "config.yaml").write_bytes(config)
    code, stdout, stderr = compare(folder)
    assert code == 4 and not stdout, stderr
    assert stderr.startswith(f"error: {folder}/config.yaml ") and stderr.count("\n") == 1
    assert not Path("marker").exists()


@pytest.mark.parametrize("name", ["config.yaml", "metrics.jsonl"])
def test_a_pipe_is_refused(folder, compare, name):
    (folder / name).unlink()
    os.mkfifo(folder / name)
    code, stdout, stderr = compare(folder)
    assert code == 4 and not stdout and stderr.startswith(f"error: {folder}/{name} "), stderr


def test_values_are_shown_as_they_stand(folder, compare, monkeypatch):
    """No variable of the environment, nothing that a terminal would act on, no row or column of their own."""
    monkeypatch.setenv("SECRET", "hunter2")
    values = [
        "${oc.env:SECRET}",
        "\x1b]0;title\x07\x1b[31m\x9b\u202e\r",
        "a\nb",
        "c | d",
        "e" * 5000,
    ]
    names = [folder, *(Path("runs", f"run{n}\x1b[2J") for n, _ in enumerate(values))]
    for name, value in zip(names[1:], values, strict=True):
        shutil.copytree(folder, name)
        text = (name / "config.yaml").read_text()
        (name / "config.yaml").write_text(
            text.replace("device: auto", f"device: {json.dumps(value)}")
        )
    code, stdout, stderr = compare(*names)
    assert code == 0 and not stderr
    for text in (stdout, Path("comparison.md").read_text()):
        table = [line for line in text.splitlines() if line.startswith("|")]
        assert len(table) == 8 and len({len(line) for line in table}) == 1 and len(table[0]) < 400
        assert text.replace("\n", "").isprintable() and "hunter2" not in text
        assert "${oc.env:SECRET}" in text and "\\x1b]0;title\\x07" in text and "a\\nb" in text


@pytest.mark.parametrize(
    "value", ["NaN", "Infinity", "-1e308", "1e308", "9" * 4000, "[[]]", "true", "null"]
)
def test_any_metric_can_be_shown(folder, compare, value):
    other = Path(shutil.copytree(folder, "runs/other"))
    names = ("val_loss", "tokens", "seconds", "loss", "val_accuracy")
    row = ", ".join(f'"{name}": {value}' for name in names)
    with open(other / "metrics.jsonl", "a") as file:
        file.write(f'{{"step": 5, {row}}}\n' + "[" * 100_000 + "\n")
        file.write('{"step": 6, "val_loss": 1e308, "tokens": -1}\n')
    code, stdout, stderr = compare(other, folder)
    assert code == 0 and not stderr and "| other " in stdout


def test_a_run_whose_loss_is_not_a_number_is_last(folder, compare):
    shutil.copytree(folder, "runs/nan")
    with open("runs/nan/metrics.jsonl", "a") as file:
        file.write('{"step": 5, "val_loss": NaN}\n')
    code, stdout, _ = compare("runs/nan", folder)
    table = [line for line in stdout.splitlines() if line.startswith("| ")]
    assert code == 0 and table[-1].startswith("| nan ")


def test_runs_that_differ_only_in_their_seed_are_one_row(folder, compare):
    """The mean, the standard deviation with n - 1, and best first by the mean; a copy is not another seed."""
    runs = [
        ("a", 1, 3.0, 2),
        ("b", 1, 2.9, 1),
        ("c", 2, 3.4, 1),
        ("d", 3, 3.8, 1),
        ("e", 3, 3.9, 1),
    ]
    for name, seed, loss, every in runs:
        shutil.copytree(folder, f"runs/{name}")
        text = Path(folder, "config.yaml").read_text().replace("seed: 0", f"seed: {seed}")
        Path("runs", name, "config.yaml").write_text(
            text.replace("log:\n  every: 1", f"log:\n  every: {every}")
        )
        with open(f"runs/{name}/metrics.jsonl", "a") as file:
            file.write(
                json.dumps(
                    {"step": 5, "val_loss": loss} | ({"val_bpb": 1.5} if name == "d" else {})
                )
                + "\n"
            )
    code, stdout, _ = compare(*(f"runs/{name}" for name, *_ in runs))
    lines = [line for line in stdout.splitlines() if line.startswith("| ")]
    head, _, *body = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    shown = ("run", "seed", "log.every", "steps", "val loss")
    assert code == 0 and [tuple(row[head.index(name)] for name in shown) for row in body] == [
        ("a", "1", "2", "5", "3.000"),
        ("b (n=3)", "[1, 2, 3]", "1", "5", "3.367 ± 0.451"),
        ("e", "3", "1", "5", "3.900"),
    ]


def test_a_huge_log_takes_little_memory(folder, compare):
    with open(folder / "metrics.jsonl", "r+b") as file:
        file.truncate(1 << 28)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert compare(folder)[0] == 0
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000


def test_the_comparison_replaces_links(folder, compare):
    kept = {"comparison.md": "a", "comparison.png": "b"}
    for name, target in kept.items():
        Path(target).write_text("kept")
        Path(name).symlink_to(target)
    assert compare(folder)[0] == 0
    assert (
        not any(Path(name).is_symlink() for name in kept)
        and Path("comparison.png").stat().st_size > 1000
    )
    assert [Path(target).read_text() for target in kept.values()] == ["kept", "kept"]


def test_runs_with_long_names_have_rows_of_their_own(folder, compare):
    names = [f"runs/{'x' * 119}{n}" for n in range(3)]
    for name in names:
        shutil.copytree(folder, name)
    code, stdout, _ = compare(*names)
    assert code == 0 and all(f"| {Path(name).name} |" in stdout for name in names)
