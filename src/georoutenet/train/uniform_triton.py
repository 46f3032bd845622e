"""Fresh uniform instances written on the GPU from a stateless seed.

``torch.rand`` inside a CUDA graph ties the instances to a generator's hidden state; here they are a
function of one int64 on the device, so a training step can be resumed or repeated by its number alone.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from georoutenet.decode.kernels_triton import UNIFORM_PURPOSE, philox, philox_words, seed_tensor
from georoutenet.errors import InputError

BLOCK = 1024  # Philox counters, of four coordinates each, per program; tunable, a power of two


@triton.jit
def _uniform(bits: tl.tensor) -> tl.tensor:
    """The upper 24 bits as a multiple of 2**-24 in [0, 1)."""
    return (bits >> 8).to(tl.int32).to(tl.float32) * 5.9604644775390625e-08


@triton.jit
def _uniform_kernel(
    out: tl.tensor, seed: tl.tensor, total: tl.tensor, purpose: tl.constexpr, block: tl.constexpr
) -> None:
    counter = tl.program_id(0) * block + tl.arange(0, block)
    zero = tl.zeros([block], dtype=tl.uint32)
    w0, w1, w2, w3 = philox_words(
        tl.load(seed).to(tl.uint64), counter.to(tl.uint32), zero, zero, zero + purpose
    )
    place = counter.to(tl.int64) * 4
    tl.store(out + place, _uniform(w0), mask=place < total)
    tl.store(out + place + 1, _uniform(w1), mask=place + 1 < total)
    tl.store(out + place + 2, _uniform(w2), mask=place + 2 < total)
    tl.store(out + place + 3, _uniform(w3), mask=place + 3 < total)


def uniform_instances(out: Tensor, seed: Tensor | int) -> Tensor:
    """Fill ``out``, ``(B, n, 2)`` float32, with independent uniforms in [0, 1) and return it.

    ``seed`` is a one-element int64 tensor on the same device, read by the kernel alone, so the call can
    be captured in a CUDA graph. Consecutive seeds give independent instances.
    """
    _check(out)
    counters = triton.cdiv(out.numel(), 4)
    if counters:
        _uniform_kernel[(triton.cdiv(counters, BLOCK),)](
            out, seed_tensor(seed, out.device), out.numel(), purpose=UNIFORM_PURPOSE, block=BLOCK
        )
    return out


def uniform_instances_reference(out: Tensor, seed: Tensor | int) -> Tensor:
    """The same numbers, bit for bit, as plain PyTorch on any device."""
    _check(out)
    counter = torch.arange(-(-out.numel() // 4), device=out.device)
    zero = torch.zeros_like(counter)
    words = philox(int(seed_tensor(seed, out.device).item()), counter, zero, zero, UNIFORM_PURPOSE)
    uniform = (torch.stack(words, dim=1) >> 8).float() * 2.0**-24
    return out.copy_(uniform.flatten()[: out.numel()].view_as(out))


def _check(out: Tensor) -> None:
    if out.dim() != 3 or out.shape[2] != 2 or out.dtype != torch.float32 or not out.is_contiguous():
        raise InputError(
            f"instances are written to a contiguous float32 (B, n, 2) tensor, "
            f"not {out.dtype} of shape {tuple(out.shape)}"
        )
