"""What runs here: versions, devices, the cache of compiled code, the form of the network for a few kinds of
work, and what else a GPU does, with the reasons. For reports of problems, and for those who wonder why
something is slow."""

from __future__ import annotations

import os
import platform
import sys
from importlib import import_module, metadata

import torch

from georoutenet.decode.gpu import lengths, merge
from georoutenet.errors import InputError
from georoutenet.io.provenance import commit, device_name
from georoutenet.jit import compiled_folder
from georoutenet.kernels.choose import Case, describe, has_adam
from georoutenet.model.config import PolicyConfig
from georoutenet.search.gpu import engine
from georoutenet.solver.batch_gpu import LEAST_EACH

PACKAGES = ("torch", "numpy", "scipy", "numba", "safetensors", "triton")
WORK = {
    "training, 512 instances of 50 cities": (True, 512, 50),
    "scores of one instance of 50 cities": (False, 1, 50),
    "scores of one instance of 100 cities": (False, 1, 100),
    "scores of one instance of 1,000 cities": (False, 1, 1000),
}


def show_versions() -> None:
    """Print what runs here: versions, devices, and in which form the network, the optimizer, the search and
    what follows a decoder run, and why."""
    sys.stdout.write("\n".join(report()) + "\n")


def report() -> list[str]:
    """The lines of `show_versions`."""
    version = import_module("georoutenet").__version__  # by name: the package's own file imports every room
    rows = [("georoutenet", " ".join(x for x in (version, commit()) if x))]
    rows += [("python", f"{platform.python_version()} on {platform.system()} {platform.machine()}")]
    rows += [(package, _version(package)) for package in PACKAGES]
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    threads = f"{cores} cores, {torch.get_num_threads()} threads of PyTorch"
    rows += [("processor", f"{device_name(torch.device('cpu'))}, {threads}")]
    devices = [torch.device("cpu"), *(torch.device("cuda", k) for k in range(torch.cuda.device_count()))]
    rows += [(str(device), _gpu(device)) for device in devices[1:]] or [("GPU", "none that PyTorch can use")]
    if devices[1:]:
        rows += [
            ("GPUs used", f"{len(devices) - 1} by many instances, each for {LEAST_EACH:,} or more of them")
        ]
    rows += [("compiled code", _code())]
    width = max(len(name) for name, _ in rows)
    return [f"{name:{width}}  {value}" for name, value in rows] + [
        line for device in devices for line in ("", *_forms(device))
    ]


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"


def _gpu(device: torch.device) -> str:
    properties = torch.cuda.get_device_properties(device)
    shared = getattr(properties, "shared_memory_per_block_optin", 0) / 1024
    capability = f"compute capability {properties.major}.{properties.minor}"
    memory = f"{properties.total_memory / 2**30:.0f} GiB"
    return f"{properties.name}, {memory}, {capability}, {shared:.0f} KiB of shared memory a block"


def _code() -> str:
    try:
        folder = compiled_folder()
    except InputError as error:
        return f"not kept: {error}"
    sizes = [path.stat().st_size for path in folder.rglob("*") if path.is_file()] if folder.is_dir() else []
    return f"{len(sizes)} files of Numba, {sum(sizes) / 1e6:.1f} MB, in {folder}"


def _forms(device: torch.device) -> list[str]:
    """Of each kind of work the form that runs, and what kept those before it from running."""
    lines = [f"The form in which GeoRouteNet runs on {device} (see georoutenet.kernels.choose):"]
    for what, (gradients, batch, n) in WORK.items():
        compute = torch.bfloat16 if device.type == "cuda" else torch.float32
        config = PolicyConfig()
        case = Case(config, device, torch.float32, compute, gradients, batch, n, config.neighbors + 1)
        *others, (form, _) = describe(case)
        lines.append(f"  {what}{f' in {compute}'.replace('torch.', '')}: {form}")
        lines += [f"    not {other}: needs {reason}" for other, reason in others]
    kernels = "CUDA kernels" if has_adam(device, torch.float32) else "PyTorch"
    lines.append(f"  the optimizer: {kernels}")
    return [*lines, *_kernels(device)] if device.type == "cuda" else lines


def _kernels(device: torch.device) -> list[str]:
    """What else a GPU does in kernels, or who does it where they do not run, and why."""
    work = []
    for most in engine.WARPS:
        reason = engine.problem(device, engine.SEARCH[most, True])
        work.append((f"the search of up to {most:,} cities", "the CPU", reason))
    for most, kernel in merge.MERGE.items():
        work.append((f"merging tours of up to {most:,} cities", "the CPU", merge.problem(device, kernel)))
    work.append(("lengths of tours", "PyTorch", lengths.problem(device)))
    return [
        f"  {what}: {f'{other} ({problem})' if problem else 'CUDA kernels'}" for what, other, problem in work
    ]
