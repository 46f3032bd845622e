"""Kernels know their parameters: wrong arguments are refused before they are launched."""

from __future__ import annotations

import re

import pytest
import torch

from georoutenet.decode.gpu import lengths, merge
from georoutenet.kernels import adam, encoder
from georoutenet.kernels.cuda.compile import DTYPES, Kernel, parameters, read_source
from georoutenet.kernels.cuda.part_sums import SUM
from georoutenet.search.gpu import engine


def test_every_kernel_is_declared_in_its_source() -> None:
    kernels = [*encoder.kernels(hopper=True), *encoder.kernels(hopper=False), adam.NORM, adam.UPDATE]
    kernels += [engine.LISTS, *engine.ALPHA.values(), *engine.SEARCH.values()]
    kernels += [*merge.MERGE.values(), lengths.LENGTHS]
    structures = set()
    helpers = set(re.findall(r"__device__[^;{}()]*?(\w+)\(", read_source("tiles.cuh")))
    assert {"pack", "length", "whole_number"} <= helpers
    for kernel in kernels:
        assert kernel.name not in helpers  # of two functions of one name the compiler does not know which
        declared = parameters(kernel)
        assert declared[-1][0] == "int", kernel
        kinds = {kind.removesuffix("*") for kind, _ in declared if kind.endswith("*")}
        structures |= kinds - DTYPES.keys()
        assert f"{kernel.name.upper()}_WARPS" in read_source(kernel.file), kernel
    assert structures == {"void", "Piece", "Plan"}


def test_parameters() -> None:
    assert parameters(SUM)[:3] == [("float4*", "in0"), ("void*", "out0"), ("int", "columns0")]
    with pytest.raises(TypeError, match=r"part_sums\.cu has no kernel sums"):
        parameters(Kernel("part_sums.cu", "sums", warps=1, shared=0))


def test_wrong_arguments() -> None:
    x = torch.zeros(4)
    right = 4 * [x, x, 1, 1, 1] + [0]
    SUM.check(right)
    SUM.check([x, x.bfloat16(), *right[2:]])  # where any may be written
    with pytest.raises(TypeError, match="part_sums takes 21 arguments, got 20"):
        SUM.check(right[:-1])
    with pytest.raises(TypeError, match=r"in0 is float4\* and takes torch.float32, got torch.float64"):
        SUM.check([x.double(), *right[1:]])
    with pytest.raises(TypeError, match=r"out0 is void\* and takes a tensor, got <class 'int'>"):
        SUM.check([x, 3, *right[2:]])
    with pytest.raises(TypeError, match=r"columns0 is int and takes <class 'int'>, got torch\.float32"):
        SUM.check([x, x, x, *right[3:]])
    with pytest.raises(TypeError, match="columns0 is int"):
        SUM.check([x, x, 1.5, *right[3:]])  # type: ignore[list-item]
