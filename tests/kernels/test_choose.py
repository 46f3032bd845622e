"""Which form runs: the table, row by row."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from emulated import count_as_compiled

from georoutenet.errors import GeoRouteNetWarning
from georoutenet.kernels import choose, encoder
from georoutenet.kernels.choose import FORMS, Case, describe
from georoutenet.kernels.cuda import compile as cuda_compile
from georoutenet.model.config import PolicyConfig

CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)
TRAINING = Case(PolicyConfig(), GPU, torch.float32, torch.bfloat16, gradients=True, batch=512, n=50, width=11)
SCORES = replace(TRAINING, device=CPU, compute=torch.float32, gradients=False, batch=1, n=100)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A GPU whose properties a test may change; by default an H200 on which all kernels compile."""
    device = SimpleNamespace(capability=(9, 0), shared_memory_per_block_optin=227 << 10, problem="")
    monkeypatch.setattr(torch.version, "hip", None)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: device.capability)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: device)
    monkeypatch.setattr(choose, "try_all", lambda kernels, _, launch: device.problem)
    monkeypatch.setattr(choose, "part_sums", lambda *arrays, dtypes: [])
    monkeypatch.setattr(torch, "zeros", lambda *shape, device: torch.ones(shape))
    for function in (choose.compiles, choose.has_adam):
        function.cache_clear()
    yield device
    for function in (choose.compiles, choose.has_adam):
        function.cache_clear()


def test_gpus(gpu: SimpleNamespace) -> None:
    """Hopper; A100; a GPU with less shared memory; one without bf16."""
    found = []
    for gpu.capability, kibibytes in (((9, 0), 227), ((8, 0), 163), ((8, 9), 99), ((7, 5), 64)):
        gpu.shared_memory_per_block_optin = kibibytes << 10
        choose.compiles.cache_clear()
        choose.has_adam.cache_clear()
        found.append((choose.choose(TRAINING), choose.has_adam(GPU, torch.float32)))
    assert found == [("cuda hopper", True), ("cuda", True), ("compiled", True), ("compiled", False)]


def test_the_page_says_what_does_not_fit_into_99_kib() -> None:
    """Of the forward pass before Hopper: the most that each kernel takes."""
    page = Path(__file__).parents[2] / "docs" / "architecture.md"
    if not page.exists():
        pytest.skip("the documentation is not part of this installation")
    taken = {each.name: each.shared >> 10 for each in encoder.kernels(hopper=False)}
    said = dict(re.findall(r"`(\w+_forward)` (?:takes )?(\d+)", page.read_text(encoding="utf-8")))
    assert {name: int(size) for name, size in said.items()} == {
        name: size for name, size in taken.items() if name.endswith("_forward") and size > 99
    }


@pytest.mark.usefixtures("gpu")
def test_what_the_kernels_take() -> None:
    sizes = ({"hidden": 64}, {"heads": 4}, {"rbf": 8}, {"layers": 7}, {"neighbors": 16})
    for size in sizes:
        assert choose.choose(replace(TRAINING, config=PolicyConfig(**size))) == "compiled", size
    assert choose.choose(replace(TRAINING, config=PolicyConfig(encoder="nar4tsp"))) == "blocks of rows"
    assert choose.choose(replace(TRAINING, compute=torch.float32)) == "compiled"
    assert choose.choose(replace(TRAINING, stored=torch.bfloat16)) == "compiled"
    assert choose.choose(replace(TRAINING, width=17)) == "compiled"
    assert choose.choose(replace(TRAINING, width=17, gradients=False)) == "cuda hopper"  # by rows
    assert choose.choose(replace(TRAINING, avoid=("cuda hopper",))) == "cuda"
    assert choose.choose(replace(TRAINING, avoid=choose.CUDA)) == "compiled"
    assert choose.choose(replace(TRAINING, gradients=False, compute=torch.float32)) == "blocks of rows"
    assert not choose.has_adam(GPU, torch.float64)


def test_on_a_cpu() -> None:
    assert choose.choose(replace(TRAINING, device=CPU)) == "all pairs"
    assert choose.choose(SCORES) == "cpu dense"
    assert choose.choose(replace(SCORES, n=50)) == "blocks of rows"  # too few pairs to load kernels
    assert choose.choose(replace(SCORES, n=50, batch=4)) == "cpu dense"
    assert choose.choose(replace(SCORES, n=300)) == "blocks of rows"
    assert choose.choose(replace(SCORES, compute=torch.bfloat16)) == "blocks of rows"
    assert choose.choose(replace(SCORES, stored=torch.float64, compute=torch.float64)) == "blocks of rows"
    assert choose.choose(replace(SCORES, config=PolicyConfig(encoder="nar4tsp"))) == "blocks of rows"
    assert choose.choose(replace(SCORES, gradients=True)) == "all pairs"
    assert not choose.has_adam(CPU, torch.float32)


def test_reasons(gpu: SimpleNamespace) -> None:
    gpu.capability = (7, 5)
    found = dict(describe(TRAINING))
    assert list(found) == ["cuda hopper", "cuda", "compiled"]
    assert "bf16 and 163 KiB" in found["cuda"]
    assert found["compiled"] == ""
    with pytest.raises(ValueError, match="all forms are avoided"):
        choose.choose(replace(TRAINING, avoid=tuple(FORMS)))


def test_kernels_that_do_not_compile_end_in_the_fallback(gpu: SimpleNamespace) -> None:
    """With one warning."""
    gpu.problem, gpu.capability = "RuntimeError: no compiler", (8, 0)
    with pytest.warns(GeoRouteNetWarning, match="the network runs in PyTorch alone.*no compiler") as caught:
        found = [choose.choose(TRAINING) for _ in range(2)]
    assert found == ["compiled"] * 2
    assert len(caught) == 1


@pytest.mark.parametrize("name", ["_compile_kernel", "set_shared_memory_config"])
def test_a_renamed_function_of_pytorch_ends_in_the_fallback(
    name: str, gpu: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu.capability = (8, 0)
    monkeypatch.setattr(choose, "try_all", cuda_compile.try_all)
    monkeypatch.setattr(cuda_compile, "_enter", lambda device: None)
    monkeypatch.setattr(torch.cuda, "device", lambda device: torch.no_grad())
    if name == "_compile_kernel":
        monkeypatch.delattr(torch.cuda, name)
    else:
        monkeypatch.setattr(torch.cuda, "_compile_kernel", lambda *args, **options: lambda *given: None)
    with pytest.warns(GeoRouteNetWarning, match=name):
        assert choose.choose(TRAINING) == "compiled"


def test_a_launch_that_fails_ends_in_the_fallback(
    gpu: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arrays: object, dtypes: object) -> None:
        raise TypeError("launch() takes 5 arguments")

    gpu.capability = (8, 0)
    count_as_compiled(monkeypatch)
    monkeypatch.setattr(choose, "try_all", cuda_compile.try_all)
    monkeypatch.setattr(choose, "part_sums", fail)
    with pytest.warns(GeoRouteNetWarning, match="takes 5 arguments"):
        assert choose.choose(TRAINING) == "compiled"
