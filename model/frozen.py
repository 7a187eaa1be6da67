"""Frozen weights, which no step changes: a run holds them once, beside its checkpoints."""

import os
from contextlib import suppress
from pathlib import Path

from data.disk import sync_and_hash, sync_folder
from model.runs import FROZEN, RUNS, sha256
from model.weights import Tensors, write_tensors


def keep_frozen(run: Path, tensors: Tensors) -> str:
    """Write the weights that no checkpoint holds, and return their hash. Runs with the same weights
    share one file: each has a hard link to it, or a copy if the file system has no links."""
    own = run / FROZEN
    own.unlink(missing_ok=True)  # writing to a link would change the other runs
    write_tensors(own, tensors)

    digest = sync_and_hash(own)
    shared = RUNS / ".frozen" / digest
    link = own.with_suffix(".draft")

    with suppress(OSError):
        shared.parent.mkdir(exist_ok=True)
        if not shared.exists():
            os.link(own, shared)
        elif sha256(shared) == digest:
            link.unlink(missing_ok=True)  # of a run that was killed
            os.link(shared, link)
            os.replace(link, own)

        for path in shared.parent.iterdir():
            if path.stat().st_nlink == 1:  # its runs were deleted
                path.unlink()

    sync_folder(run)
    return digest
