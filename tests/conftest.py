import gc
import os

import pytest

os.environ.update(HF_HUB_OFFLINE="1", WANDB_DISABLE_WEAVE="1")  # no test needs a network
os.environ["OMP_NUM_THREADS"] = "1"  # of the processes that tests start

try:
    import torch
except ModuleNotFoundError:
    pytest.exit(
        "torch is missing: is this the pytest of the environment that README.md sets up?", 4
    )

from configs.cli import run_command
from configs.parts import load_parts


def pytest_addoption(parser):
    parser.addoption("--parts", help="a file of your own parts; -k mine tests them alone")


def pytest_configure(config):
    try:
        load_parts(config.getoption("parts"))
    except ValueError as error:
        raise pytest.UsageError(error) from None


def pytest_collection_finish():
    gc.freeze()  # a search for garbage takes long with all that was imported
    gc.set_threshold(50_000, 20, 50)


@pytest.fixture
def command(capsys):
    """command(main, *arguments, code=0): what it prints until it ends with this exit code: .out and .err"""

    def command(main, *arguments, code=0):
        capsys.readouterr()
        found = run_command(lambda: main(list(arguments)))
        printed = capsys.readouterr()
        assert found == code, printed.err
        return printed

    return command


torch.set_num_threads(1)  # each worker of pytest-xdist has a core
# were the first backward pass one of fake tensors, autograd would start threads for GPUs: no test could fork
torch.ones((), requires_grad=True).backward()
