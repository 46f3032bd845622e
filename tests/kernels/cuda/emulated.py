"""CUDA sources on the CPU: compiled with g++ behind `emulated_warp.h`, a block's threads as fibers."""

from __future__ import annotations

import ctypes
import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from contextlib import nullcontext
from functools import cache
from pathlib import Path

import pytest
import torch
from torch import Tensor

from georoutenet.kernels import choose
from georoutenet.kernels.cuda import compile
from georoutenet.kernels.cuda.compile import Kernel, read_source

BLOCKS = 3  # that run at a time


@cache
def library(file: str, warps: int, wgmma: bool) -> ctypes.CDLL:
    """The kernels of one source as functions ``run_name(blocks, ...)``.

    What is compiled is kept in a folder under a name made from its content, so that other processes and later
    runs of the tests find it.
    """
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("needs g++")
    source = read_source(file)
    source = source[source.index("// Tiles of 16 rows") :]  # without the instructions of warp.cuh
    source = source.replace("extern __shared__ uint4 shared[];", "uint4* shared = (uint4*)emulated_shared;")
    macros, runs = ["-DHOPPER"] if wgmma else [], []
    for name, parameters in re.findall(r"__launch_bounds__\([^)]*\)\s*(\w+)\(([^)]*)\)", source):
        macros.append(f"-D{name.upper()}_WARPS={warps}")
        names = ", ".join(re.findall(r"(\w+)\s*(?:,|$)", parameters))
        runs.append(
            f'extern "C" void run_{name}(int blocks, {parameters}) '
            f"{{ launch(blocks, {32 * warps}, [=] {{ {name}({names}); }}); }}\n"
        )
    assert runs, f"no kernels in {file}"
    emulator = Path(__file__).with_name("emulated_warp.h").read_text(encoding="utf-8")
    # Libraries of several sources are loaded at a time: each keeps its own variables.
    command = [compiler, "-std=c++17", "-O1", "-w", "-shared", "-fPIC", "-fno-gnu-unique", *macros]
    content = emulator + source + "".join(runs)
    digest = hashlib.sha256("\n".join([*command, content]).encode()).hexdigest()[:32]
    folder = Path(tempfile.gettempdir()) / f"georoutenet-emulated-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.stat().st_uid != os.getuid():
        pytest.skip(f"{folder} belongs to somebody else")
    built = folder / f"{Path(file).stem}-{digest}.so"
    if not built.exists():
        with tempfile.TemporaryDirectory(dir=folder) as place:
            (Path(place) / "kernels.cpp").write_text(content, encoding="utf-8")
            whole = [*command, "kernels.cpp", "-o", "kernels.so"]
            done = subprocess.run(whole, cwd=place, capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stderr[:3000]
            os.replace(Path(place) / "kernels.so", built)  # at once, whoever else builds it
    return ctypes.CDLL(str(built))


def launch(
    kernel: Kernel, *arguments: Tensor | int, blocks: int | None = None, shared: int | None = None
) -> None:
    """`Kernel.__call__` on emulated blocks."""
    kernel.check(arguments)
    assert (shared or 0) <= kernel.shared
    assert all(a.device.type == "cpu" for a in arguments if isinstance(a, Tensor))
    run = getattr(library(kernel.file, kernel.warps, kernel.wgmma), f"run_{kernel.name}")
    values = (ctypes.c_void_p(a.data_ptr()) if isinstance(a, Tensor) else a for a in arguments)
    run(blocks or BLOCKS, *values)


def emulate(monkeypatch: pytest.MonkeyPatch) -> list[Kernel]:
    """From now on kernels are emulated, with as many blocks as `BLOCKS` says; those that ran."""
    kernels: list[Kernel] = []

    def record(kernel: Kernel, *arguments: Tensor | int, **options: int | None) -> None:
        kernels.append(kernel)
        launch(kernel, *arguments, **options)

    monkeypatch.setattr(Kernel, "__call__", record)
    monkeypatch.setattr(Kernel, "count", lambda kernel, arguments: BLOCKS)
    return kernels


def count_as_compiled(monkeypatch: pytest.MonkeyPatch, *, launch: str = "") -> None:
    """Kernels compile for the CPU, where they are emulated; with ``launch``, they cannot be launched."""

    def fail(kernel: Kernel, *arguments: Tensor | int, **options: int | None) -> None:
        raise RuntimeError(launch)

    emulate(monkeypatch)
    monkeypatch.setattr(compile, "_compile", lambda kernel, device: None)
    monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext())
    if launch:
        monkeypatch.setattr(Kernel, "__call__", fail)


def emulate_gpu(monkeypatch: pytest.MonkeyPatch, *, hopper: bool) -> None:
    """The table of forms takes the CPU for a GPU."""
    monkeypatch.setattr(choose, "is_capable", lambda device: True)
    monkeypatch.setattr(choose, "is_hopper", lambda device: hopper)
    monkeypatch.setattr(choose, "compiles", lambda device, hopper: True)


def on_gpu(hopper: bool) -> str:
    """The device for tests of the kernels' build; skips where there is none."""
    device = torch.device("cuda", 0)
    if not choose.is_capable(device) or (hopper and not choose.is_hopper(device)):
        pytest.skip("no such kernels on this device")
    assert choose.compiles(device, hopper)
    return "cuda"


def off(found: Tensor, exact: Tensor) -> float:
    """The relative distance of two tensors."""
    return ((found.double() - exact.double()).norm() / exact.double().norm()).item()


def worst_row(found: Tensor, exact: Tensor) -> float:
    """The largest distance of two rows of features, relative to the root mean square of all rows."""
    rows = [x.double().reshape(-1, x.shape[-1]) if x.dim() else x.double().view(1, 1) for x in (found, exact)]
    typical = rows[1].norm() / len(rows[1]) ** 0.5
    return ((rows[0] - rows[1]).norm(dim=1).max() / typical).item()
