"""What takes long to import is imported only by those who need it."""

import subprocess
import sys

import pytest

from tests.parts import ROOT

SLOW = {"torch._dynamo", "torch.distributed.tensor", "matplotlib", "datasets", "huggingface_hub", "tokenizers"}
SLOW |= {"transformers", "wandb", "pandas", "requests"}

# what is imported when print is called with the pattern
UNTIL = """
import re, runpy, sys
command, pattern = sys.argv[1], sys.argv.pop(2)
"""
