"""CUDA sources on the CPU: compiled with g++ behind `emulated_warp.h`, a block's threads as fibers."""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from torch import Tensor

from georoutenet.kernels.cuda import compile as native
from georoutenet.kernels.cuda.compile import Kernel, read_source


class Emulated:
    """The kernels of one source, called by name with tensors and numbers."""

    def __init__(
        self, file: str, folder: Path, *, warps: int = 2, blocks: int = 2, hopper: bool = False
    ) -> None:
        compiler = shutil.which("g++")
        if compiler is None:
            pytest.skip("needs g++")
        self.blocks = blocks
        source = read_source(file)
        source = source[source.index("// Tiles of 16 rows") :]  # without the instructions of warp.cuh
        source = source.replace(
            "extern __shared__ uint4 shared[];", "uint4* shared = (uint4*)emulated_shared;"
        )
        macros, runs = ["-DHOPPER"] if hopper else [], []
        for name, parameters in re.findall(r"__launch_bounds__\([^)]*\)\s*(\w+)\(([^)]*)\)", source):
            macros.append(f"-D{name.upper()}_WARPS={warps}")
            names = ", ".join(re.findall(r"(\w+)\s*(?:,|$)", parameters))
            runs.append(
                f'extern "C" void run_{name}(int blocks, {parameters}) '
                f"{{ launch(blocks, {32 * warps}, [=] {{ {name}({names}); }}); }}\n"
            )
        assert runs, f"no kernels in {file}"
        emulator = Path(__file__).with_name("emulated_warp.h").read_text(encoding="utf-8")
        (folder / "kernels.cpp").write_text(emulator + source + "".join(runs), encoding="utf-8")
        # Libraries of several sources are loaded at a time: each keeps its own variables.
        options = ["-std=c++17", "-O1", "-w", "-shared", "-fPIC", "-fno-gnu-unique", *macros]
        command = [compiler, *options, "kernels.cpp", "-o", "kernels.so"]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[:3000]
        self.library = ctypes.CDLL(str(folder / "kernels.so"))

    def __call__(self, name: str, *arguments: Tensor | int, blocks: int | None = None) -> None:
        values = (ctypes.c_void_p(a.data_ptr()) if isinstance(a, Tensor) else a for a in arguments)
        getattr(self.library, f"run_{name}")(blocks or self.blocks, *values)


def emulate_kernels(folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """From now on kernels are emulated as on Hopper; the names of those that run."""
    blocks_at_a_time = 3
    sources: dict[tuple[str, int], Emulated] = {}
    names: list[str] = []

    def launch(kernel: Kernel, *arguments: Tensor | int, blocks: int | None = None) -> None:
        key = (kernel.file, kernel.warps)
        if key not in sources:
            place = folder / f"{kernel.file}-{kernel.warps}"
            place.mkdir()
            sources[key] = Emulated(kernel.file, place, warps=kernel.warps, hopper=kernel.groups)
        names.append(kernel.name)
        sources[key](kernel.name, *arguments, blocks=blocks or blocks_at_a_time)

    monkeypatch.setattr(Kernel, "__call__", launch)
    monkeypatch.setattr(Kernel, "count", lambda kernel, arguments: blocks_at_a_time)
    monkeypatch.setattr(native, "hopper", lambda device: True)
    monkeypatch.setattr(
        native, "fits", lambda states, *kernels: states.dtype == torch.bfloat16 and states.shape[-1] == 128
    )
    return names


@contextmanager
def launching(emulated: Emulated, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """All kernels are those of one source; what they leave unwritten is not a number."""

    def launch(kernel: Kernel, *arguments: Tensor | int, blocks: int | None = None) -> None:
        emulated(kernel.name, *arguments, blocks=blocks)

    monkeypatch.setattr(Kernel, "__call__", launch)
    monkeypatch.setattr(Kernel, "count", lambda kernel, arguments: emulated.blocks)
    torch.use_deterministic_algorithms(True)  # fills new memory with NaN
    yield
    torch.use_deterministic_algorithms(False)


def off(found: Tensor, exact: Tensor) -> float:
    """The relative distance of two tensors."""
    return ((found.double() - exact.double()).norm() / exact.double().norm()).item()
