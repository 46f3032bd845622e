"""CUDA sources on the CPU: compiled with g++ behind `emulated_warp.h`, a block's threads as fibers."""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from torch import Tensor

from georoutenet.model.native import read_source


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


def off(found: Tensor, exact: Tensor) -> float:
    """The relative distance of two tensors."""
    return ((found.double() - exact.double()).norm() / exact.double().norm()).item()
