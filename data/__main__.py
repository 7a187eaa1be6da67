"""The command python -m data, which is training/preview.py: it sees what a run would."""

import sys

from configs.cli import run_command
from training.preview import main

if __name__ == "__main__":
    sys.exit(run_command(main))
