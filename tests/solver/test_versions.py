"""What a user is told about what runs here."""

from __future__ import annotations

import re

import pytest
import torch
from emulated import emulate_gpu

import georoutenet as grn
from georoutenet.solver import versions


def test_show_versions(capsys: pytest.CaptureFixture[str]) -> None:
    grn.show_versions()
    out = capsys.readouterr().out
    assert re.search(rf"^georoutenet +{re.escape(grn.__version__)}", out, re.MULTILINE)
    assert re.search(rf"^torch +{re.escape(torch.__version__)}$", out, re.MULTILINE)
    for expected in (
        "training, 512 instances of 50 cities in float32: all pairs",
        "not cuda: needs a GPU",
        "scores of one instance of 100 cities in float32: cpu dense",
        "scores of one instance of 50 cities in float32: blocks of rows",
        "not cpu dense: needs enough pairs",
        "the optimizer: PyTorch",
    ):
        assert expected in out


def test_a_package_that_is_not_there() -> None:
    assert versions._version("georoutenet-nowhere") == "not installed"


def test_with_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    class Properties:
        name, major, minor, total_memory = "NVIDIA H200", 9, 0, 141 << 30
        shared_memory_per_block_optin = 227 << 10

    emulate_gpu(monkeypatch, hopper=True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: Properties)
    monkeypatch.setattr(versions, "has_adam", lambda device, dtype: device.type == "cuda")
    monkeypatch.setattr(versions.engine, "problem", lambda device, kernel: "")
    monkeypatch.setattr(
        versions.merge,
        "problem",
        lambda device, kernel: "" if kernel.shared < 1e5 else "ValueError: too much",
    )
    monkeypatch.setattr(versions.lengths, "problem", lambda device: "RuntimeError: no compiler")
    out = "\n".join(versions.report())
    assert "NVIDIA H200, 141 GiB, compute capability 9.0, 227 KiB of shared memory a block" in out
    assert "training, 512 instances of 50 cities in bfloat16: cuda hopper" in out
    for line in (
        "the optimizer: CUDA kernels",
        "the search of up to 256 cities: CUDA kernels",
        "the search of up to 1,024 cities: CUDA kernels",
        "merging tours of up to 256 cities: CUDA kernels",
        "merging tours of up to 1,025 cities: the CPU (ValueError: too much)",
        "lengths of tours: PyTorch (RuntimeError: no compiler)",
    ):
        assert f"\n  {line}" in out
    assert re.search(r"^GPUs used +1 by many instances, each for 1,024 or more of them$", out, re.MULTILINE)
