"""Progress: how far reading has come, in megabytes a second."""

import sys
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn
from rich.progress import TransferSpeedColumn as Speed


@contextmanager
def reading():
    """A function for prepare(report=): a bar on a terminal, a line at the end elsewhere. What is already
    prepared shows nothing."""
    console = Console(stderr=True)
    columns = [
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        Speed(),
        TimeRemainingColumn(),
    ]
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = None

        def report(done, total):
            nonlocal task
            if task is None:
                task = bar.add_task("text to tokens", total=total)
            bar.update(task, completed=done, total=total)

        yield report
        speed = bar.tasks[0].speed if bar.tasks else None
    if task is not None:
        said = f"{bar.tasks[0].completed / 1e6:.1f} MB of text to tokens"
        print(said + (f", {speed / 1e6:.1f} MB/s" if speed else ""), file=sys.stderr)
