import os

import pytest

os.environ["HF_HUB_OFFLINE"] = "1"  # no test needs a network
os.environ["OMP_NUM_THREADS"] = "1"  # of the processes that tests start

try:
    import torch
except ModuleNotFoundError:
    pytest.exit(
        "torch is missing: is this the pytest of the environment that README.md sets up?", 4
    )

torch.set_num_threads(1)  # each worker of pytest-xdist has a core
# were the first backward pass one of fake tensors, autograd would start threads for GPUs: no test could fork
torch.ones((), requires_grad=True).backward()
