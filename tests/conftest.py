import os

import pytest

os.environ["HF_HUB_OFFLINE"] = "1"  # no test may need a network

try:
    import torch
except ModuleNotFoundError:
    pytest.exit("torch is missing: is this the pytest of the environment that README.md sets up?", 4)

torch.set_num_threads(1)  # the tensors of these tests are too small to share
