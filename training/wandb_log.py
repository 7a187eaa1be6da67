"""wandb: sends the rows of metrics.jsonl to the service of that name."""

import uuid
from dataclasses import asdict
from pathlib import Path
from typing import Any

from configs.cli import warn
from configs.errors import first_line
from configs.schema import Config


def start_wandb(run: Path, config: Config) -> Any:
    """Start wandb. A resumed run keeps its id. A failure is only a warning."""
    id_file = run / "wandb-id"
    try:
        import wandb

        if not id_file.exists():
            id_file.write_text(uuid.uuid4().hex)
        return wandb.init(
            **asdict(config.wandb),
            name=run.name,
            id=id_file.read_text(),
            resume="allow",
            dir=run,
            config=asdict(config),
            settings=wandb.Settings(silent=True, console="off", init_timeout=15),
        )
    except Exception as error:  # whatever the service does, the run continues
        warn(f"no wandb ({type(error).__name__}: {first_line(error)})")
        return None
