"""NAR4TSP's edge layer in CUDA C++ on emulated blocks: the whole layer, against float64 in plain PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch
from emulated import Emulated
from torch import Tensor
from torch.nn import functional

from georoutenet.model import (
    edge_sums_cuda,
    nar4tsp_attention_cuda,
    nar4tsp_layer_cuda,
    native,
    start_attention_cuda,
)

pytest.importorskip("triton", reason="Triton is not installed")
from test_nar4tsp_triton import compare_encoders, compare_layer

from georoutenet.model import (
    nar4tsp_attention_triton,
    nar4tsp_fused,
    nar4tsp_nodes_cuda,
    nar4tsp_triton,
    nar4tsp_vectors_cuda,
)


@dataclass
class OnTheCpu:
    """A kernel on emulated blocks."""

    emulated: Emulated
    name: str
    warps: int = 0  # where Python asks

    def __call__(self, *arguments: Tensor | int, blocks: int | None = None) -> None:
        self.emulated(self.name, *arguments, blocks=blocks)

    def count(self, _: Sequence[Tensor | int]) -> int:
        return self.emulated.blocks


def poisoned(fresh: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """What is not written is found."""
    return lambda *arguments, **options: fresh(*arguments, **options).fill_(torch.nan)


@pytest.fixture(scope="module", params=[False, True], ids=["", "hopper"])
def layer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Emulated:
    warps = 8 if request.param else 2
    return Emulated("nar4tsp_layer.cu", tmp_path_factory.mktemp("layer"), warps=warps, hopper=request.param)


@pytest.fixture(scope="module")
def sums(tmp_path_factory: pytest.TempPathFactory) -> Emulated:
    return Emulated("edge_sums.cu", tmp_path_factory.mktemp("sums"), warps=edge_sums_cuda.SUMS.warps)


@pytest.fixture
def _emulated(layer: Emulated, sums: Emulated, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, kernel in vars(nar4tsp_layer_cuda).copy().items():
        if isinstance(kernel, native.Kernel):
            monkeypatch.setattr(nar4tsp_layer_cuda, name, OnTheCpu(layer, kernel.name))
    monkeypatch.setattr(edge_sums_cuda, "SUMS", OnTheCpu(sums, "update_sums"))
    monkeypatch.setattr(nar4tsp_layer_cuda, "fits", lambda *_: True)
    for owner, name in ((torch.Tensor, "new_empty"), (torch, "empty_like")):
        monkeypatch.setattr(owner, name, poisoned(getattr(owner, name)))


# Less than a tile and many; less pairs of an instance than a tile has; tails.
@pytest.mark.usefixtures("_emulated")
@pytest.mark.parametrize(
    ("batch", "n", "heads", "first"),
    [
        (1, 3, 8, False),
        (3, 3, 3, True),
        (2, 5, 8, True),
        (2, 7, 8, False),
        (1, 13, 0, False),
        (3, 6, 0, True),
        (2, 11, 5, False),
    ],
)
def test_against_the_reference(batch: int, n: int, heads: int, first: bool) -> None:
    found = compare_layer(batch, n, 128, heads, torch.bfloat16, "cpu", first=first)
    # Rounding to bfloat16, 2^-9 a time, of gradients much of which the norm takes out.
    for name, difference in found.items():
        assert difference < 2e-2, (name, difference)


@pytest.mark.usefixtures("_emulated")
@pytest.mark.parametrize("first", [False, True])
def test_targets_in_bands(first: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of more cities than a band has, all sums come in parts."""
    monkeypatch.setattr(edge_sums_cuda, "TARGETS", 4)
    for name, difference in compare_layer(1, 7, 128, 8, torch.bfloat16, "cpu", first=first).items():
        assert difference < 2e-2, (name, difference)


@cache
def at_the_nodes() -> tuple[TemporaryDirectory[str], dict[str, Emulated]]:
    """The sources of the layers' kernels at the nodes and between them, on emulated blocks; and where they
    are, until nobody has them any more."""
    folder = TemporaryDirectory()
    sources = {}
    for name, warps, blocks in (("attention", 8, 2), ("nodes", 8, 6), ("vectors", 4, 2)):
        (part := Path(folder.name) / name).mkdir()
        sources[name] = Emulated(f"nar4tsp_{name}.cu", part, warps=warps, blocks=blocks)
    return folder, sources


def emulate_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those kernels run on the CPU."""
    _, sources = at_the_nodes()
    for name in ("FORWARD", "BACKWARD"):
        kernels = getattr(nar4tsp_attention_cuda, name)
        on_the_cpu = {most: OnTheCpu(sources["attention"], kernel.name) for most, kernel in kernels.items()}
        monkeypatch.setattr(nar4tsp_attention_cuda, name, on_the_cpu)
    for module, source in ((nar4tsp_nodes_cuda, "nodes"), (nar4tsp_vectors_cuda, "vectors")):
        for name, kernel in vars(module).copy().items():
            if isinstance(kernel, native.Kernel):
                monkeypatch.setattr(module, name, OnTheCpu(sources[source], kernel.name, 4))


@pytest.mark.usefixtures("_emulated")
@pytest.mark.parametrize("nodes", [False, True])
def test_in_the_encoder(nodes: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With CUDA kernels, at the nodes as well or not, and in plain operations what is in Triton, the encoder
    is as near to the exact one as in plain operations altogether."""
    if nodes:
        emulate_nodes(monkeypatch)
        monkeypatch.setattr(nar4tsp_fused, "fits", lambda *_: True)
    starts = Emulated("start_attention.cu", tmp_path, warps=8)
    for name in ("STATE", "STATE_BACKWARD", "DISTRIBUTION", "DISTRIBUTION_BACKWARD"):
        monkeypatch.setattr(start_attention_cuda, name, OnTheCpu(starts, f"start_{name.lower()}"))
    monkeypatch.setattr(start_attention_cuda, "fits", lambda *_: True)
    monkeypatch.setattr(nar4tsp_attention_triton, "MAX_CITIES", 0)
    monkeypatch.setattr(nar4tsp_triton, "edge_logit", plain_head)
    sizes = (3, 5, torch.bfloat16, "cpu")
    found, plain = (compare_encoders(*sizes, is_fused, layers=2, neighbors=3) for is_fused in (True, False))
    for name, difference in found.items():
        assert difference < 3 * plain[name] + 0.05, (name, difference, plain[name])
    assert sum(found.values()) < 1.2 * sum(plain.values())


def plain_head(x: Tensor, weight: Tensor, bias: Tensor, last: Tensor, offset: Tensor) -> Tensor:
    hidden = functional.linear(x, weight.to(x.dtype), bias.to(x.dtype)).relu().float()
    return hidden @ last + offset


@pytest.mark.gpu
@pytest.mark.parametrize("how", ["Triton", "CUDA", "CUDA, four warps together"])
@pytest.mark.parametrize(
    ("batch", "n", "heads", "first"),
    [
        (3, 5, 8, False),
        (3, 11, 5, True),
        (64, 50, 8, False),
        (64, 50, 0, False),
        (64, 50, 8, True),
        (3, 63, 8, False),
        (3, 65, 8, True),
        (2, 200, 8, False),
    ],
)
def test_on_the_device(
    how: str, batch: int, n: int, heads: int, first: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if how == "Triton":
        monkeypatch.setattr(native, "fits", lambda *_: False)
    else:
        monkeypatch.setattr(native, "HOPPER", how != "CUDA")
        states = torch.empty(1, 128, device="cuda", dtype=torch.bfloat16)
        if native.hopper(states.device) != native.HOPPER or not nar4tsp_layer_cuda.fits(states, heads):
            pytest.skip("no such kernels on this device")
    found = compare_layer(batch, n, 128, heads, torch.bfloat16, "cuda", first=first)
    # As in `test_nar4tsp_triton`: of small gradients, such as that of the scale where no scores add to it,
    # the norm leaves little more than rounding to bfloat16; both kinds of kernels are off by 0.031 there.
    for name, difference in found.items():
        assert difference < 5e-2, (name, difference)
