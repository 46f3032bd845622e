"""Every kernel compiles for an A100 and an H100 with NVIDIA's own compiler, which needs no GPU."""

from __future__ import annotations

import ctypes
from pathlib import Path

import pytest
from torch.cuda import _utils
from torch.utils import cpp_extension

from georoutenet.decode.gpu import lengths, merge
from georoutenet.kernels import adam, encoder
from georoutenet.kernels.cuda.compile import Kernel, read_source
from georoutenet.kernels.cuda.part_sums import SUM
from georoutenet.search.gpu import engine

KERNELS = {*encoder.kernels(hopper=True), *encoder.kernels(hopper=False), adam.NORM, adam.UPDATE, SUM}
KERNELS |= {engine.LISTS, *engine.ALPHA.values(), *engine.SEARCH.values()}
KERNELS |= {*merge.MERGE.values(), lengths.LENGTHS}


@pytest.fixture(scope="module")
def nvrtc() -> ctypes.CDLL:
    """The library of `pip install nvidia-cuda-nvrtc`."""
    nvidia = pytest.importorskip("nvidia", reason="needs nvidia-cuda-nvrtc")
    found = [file for path in nvidia.__path__ for file in Path(path).rglob("libnvrtc.so*")]
    if not found:
        pytest.skip("needs nvidia-cuda-nvrtc")
    return ctypes.CDLL(str(found[0]))


@pytest.mark.slow
@pytest.mark.parametrize("kernel", sorted(KERNELS, key=str), ids=lambda each: f"{each.name}-{each.wgmma}")
def test_compiles(kernel: Kernel, nvrtc: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_utils, "_get_gpu_rtc_library", lambda: nvrtc)
    monkeypatch.setattr(cpp_extension, "include_paths", lambda *_: [])
    options = [f"-D{kernel.name.upper()}_WARPS={kernel.warps}", *(["-DHOPPER"] if kernel.wgmma else [])]
    for capability in ("90a",) if kernel.wgmma else ("80", "90"):
        code, _ = _utils._nvrtc_compile(
            read_source(kernel.file), kernel.name, compute_capability=capability, nvcc_options=options
        )
        assert len(code) > 1000
