"""The device and the numbers of a run: what is asked for is there, or is refused in a sentence."""

import pytest
import torch

from model.precision import choose_device


@pytest.mark.parametrize(
    "name", ["tpu", "", "cpu:foo", "cpu:7", "cpu:", "auto:3", "mps:1", "cuda:", "cuda:-1", "cuda:01"]
)
def test_what_is_no_device_is_refused(name):
    with pytest.raises(
        ValueError, match=f"device is '{name}'; choose one of: auto, cpu, cuda, mps, or a GPU"
    ):
        choose_device(name)


def test_only_a_gpu_that_is_there_has_a_number(monkeypatch):
    with monkeypatch.context_length() as there:
        there.setattr(torch.cuda, "is_available", lambda: True)
        there.setattr(torch.cuda, "device_count", lambda: 2)
        assert choose_device("cuda:1") == torch.device("cuda", 1)
        assert choose_device("cuda") == torch.device("cuda")
        with pytest.raises(
            ValueError, match="device=cuda:2 and there are 2 GPUs, of which the first is cuda:0"
        ):
            choose_device("cuda:2")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for name in ("cuda", "cuda:0"):
        with pytest.raises(ValueError, match="there is no GPU that torch can use"):
            choose_device(name)
    assert choose_device("cpu") == torch.device("cpu")
