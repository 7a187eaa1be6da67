"""Device and precision: what is requested is available, or is rejected; the reason is given."""

import os

import pytest
import torch

from model.cpu import fast_bf16
from model.precision import choose_device, choose_precision, use_deterministic_algorithms
from tests.parts import refused
from training.cost import peak_of

CPU = torch.device("cpu")


@pytest.mark.parametrize("name", ["tpu", "", "cpu:7", "cuda:", "cuda:01"])
def test_unknown_devices_are_rejected(name):
    message = f"device is '{name}'; choose one of: auto, cpu, cuda, mps, or"
    with refused(message):
        choose_device(name)


def test_only_an_existing_gpu_can_be_chosen(monkeypatch):
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    chosen = []
    monkeypatch.setattr("torch.cuda.set_device", chosen.append)
    assert choose_device("cuda:1") == torch.device("cuda", 1)
    assert chosen == [torch.device("cuda", 1)]
    for n_gpus, name in ((2, "cuda:2"), (0, "cuda")):
        monkeypatch.setattr("torch.cuda.device_count", lambda n=n_gpus: n)
        with refused(f"device={name}, but torch finds {n_gpus} cuda"):
            choose_device(name)
    assert choose_device("cpu") == CPU


@pytest.mark.parametrize(
    "vendor, features, feature",
    [
        ("AuthenticAMD", "avx2 avx512_bf16", "avx512_bf16"),
        ("GenuineIntel", "avx512_bf16", None),
        ("GenuineIntel", "avx512_bf16 amx_bf16", "amx_bf16"),
        ("ARM", "Features : asimd bf16", "bf16"),
    ],
)
def test_cpu_precision_follows_its_features(vendor, features, feature, monkeypatch):
    text = f"processor : 0\nvendor_id : {vendor}\nflags : fpu {features}\n"
    monkeypatch.setattr("pathlib.Path.read_text", lambda path, encoding: text)
    monkeypatch.setattr("model.cpu.fast_bf16", fast_bf16.__wrapped__)
    expected = (CPU, torch.float32, "no faster dtype is safe on this cpu")
    if feature:
        expected = (CPU, torch.bfloat16, f"CPU has native bf16 matmul ({feature})")
    assert choose_precision(CPU, "auto") == expected
    assert choose_precision(CPU, "fp16").dtype == torch.float16


TERAFLOPS = {
    "NVIDIA H100 80GB HBM3": 989,
    "Tesla T4": 65,
    "NVIDIA T400": None,
    "NVIDIA GB200": 2500,
    "NVIDIA GeForce RTX 4090 Laptop GPU": None,
}


@pytest.mark.parametrize("name, teraflops", TERAFLOPS.items())
def test_peaks_are_known_by_whole_words(name, teraflops):
    assert peak_of(name) == (teraflops and teraflops * 1e12)


def test_deterministic_algorithms(monkeypatch):
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    monkeypatch.setattr("torch.utils.deterministic.fill_uninitialized_memory", True)
    use_deterministic_algorithms(True)
    assert torch.are_deterministic_algorithms_enabled()
    assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
    use_deterministic_algorithms(False)
    assert not torch.are_deterministic_algorithms_enabled()


def test_precision_of_a_gpu(monkeypatch):
    """cuDNN would plan attention for each length; bf16 on a T4 would be emulated."""
    settings = []
    monkeypatch.setattr("torch.set_float32_matmul_precision", settings.append)
    monkeypatch.setattr("torch.backends.cuda.enable_cudnn_sdp", settings.append)
    capability = (8, 0)
    monkeypatch.setattr("torch.cuda.get_device_capability", lambda device: capability)
    gpu = torch.device("cuda")
    assert choose_precision(gpu, "auto").dtype == torch.bfloat16
    assert settings == ["high", False]
    capability = (7, 5)
    assert choose_precision(gpu, "auto").dtype == torch.float16
    with refused("no native bf16 matmul; choose precision=fp16"):
        choose_precision(gpu, "bf16")
