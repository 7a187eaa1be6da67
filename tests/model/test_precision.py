"""Device and precision: what is requested is available, or is rejected; the reason is given."""

import os

import pytest
import torch

from model.precision import (
    choose_device,
    choose_precision,
    fast_bf16,
    peak_of,
    use_deterministic_algorithms,
)


def test_unknown_devices_are_rejected():
    for name in (
        "tpu",
        "",
        "cpu:foo",
        "cpu:7",
        "cpu:",
        "auto:3",
        "mps:1",
        "cuda:",
        "cuda:-1",
        "cuda:01",
    ):
        with pytest.raises(
            ValueError, match=f"device is '{name}'; choose one of: auto, cpu, cuda, mps, or"
        ):
            choose_device(name)


def test_only_an_existing_gpu_can_be_chosen(monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(torch.cuda, "is_available", lambda: True)
        patch.setattr(torch.cuda, "device_count", lambda: 2)
        assert choose_device("cuda:1") == torch.device("cuda", 1)
        assert choose_device("cuda") == torch.device("cuda")
        with pytest.raises(
            ValueError, match="device=cuda:2, but there are 2 GPUs; the first is cuda:0"
        ):
            choose_device("cuda:2")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for name in ("cuda", "cuda:0"):
        with pytest.raises(ValueError, match="there is no GPU that torch can use"):
            choose_device(name)
    assert choose_device("cpu") == torch.device("cpu")


@pytest.mark.parametrize(
    ("vendor", "features", "feature"),
    [
        ("AuthenticAMD", "avx2 avx512_bf16", "avx512_bf16"),
        ("GenuineIntel", "avx2 avx512_bf16", None),
        ("GenuineIntel", "avx512_bf16 amx_bf16", "amx_bf16"),
        ("AuthenticAMD", "avx2", None),
    ],
)
def test_cpu_precision_follows_its_features(vendor, features, feature, monkeypatch):
    cpu = {"vendor_id": vendor, "flags": features}
    assert fast_bf16(cpu) == feature
    monkeypatch.setattr("model.precision.processor", lambda: cpu)
    _, dtype, reason = choose_precision(torch.device("cpu"), "auto")
    assert dtype == (torch.bfloat16 if feature else torch.float32)
    assert reason.endswith(
        f"bf16 matmul ({feature})" if feature else "no faster dtype is safe on this cpu"
    )
    assert choose_precision(torch.device("cpu"), "fp16").dtype == torch.float16


@pytest.mark.parametrize(
    ("name", "teraflops"),
    [
        ("NVIDIA H100 80GB HBM3", 989),
        ("NVIDIA H100 PCIe", 756),
        ("NVIDIA H100 NVL", 835),
        ("NVIDIA A100-SXM4-80GB", 312),
        ("NVIDIA L40", 181),
        ("NVIDIA L4", 121),
        ("NVIDIA A10", 125),
        ("Tesla T4", 65),
        ("NVIDIA T400", None),
        ("NVIDIA GB200", None),
    ],
)
def test_peaks_are_known_by_whole_words(name, teraflops):
    assert peak_of(name) == (teraflops and teraflops * 1e12)


def test_deterministic_algorithms(monkeypatch):
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    monkeypatch.setattr(torch.utils.deterministic, "fill_uninitialized_memory", True)
    use_deterministic_algorithms(True)
    assert (
        torch.are_deterministic_algorithms_enabled()
        and os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
    )
    use_deterministic_algorithms(False)
    assert not torch.are_deterministic_algorithms_enabled()
