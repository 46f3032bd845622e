"""Training speed: steps and instances per second of the whole step, and where the time of a step goes.

    python benchmarks/gpu/training.py [--device cuda] [--seconds 5] [--case "n=50 batch=64 M=3"] [--profile]
        [--memory] [--trace trace.csv] [--mma] [--at-once] [--set policy.encoder=nar4tsp]
        [--csv benchmarks/results/gpu/training.csv]

The whole step is timed as it runs in training: compiled and captured on CUDA, eager on the CPU. The parts
are timed one by one in the uncaptured step, so on small batches they consist of launch times.
"""

from __future__ import annotations

import argparse
import csv
import datetime
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch

from georoutenet.decode import rollout
from georoutenet.kernels.choose import CUDA
from georoutenet.policy import Policy
from georoutenet.train import step as step_module
from georoutenet.train.prepare import make_policy, make_steps
from georoutenet.train.recipe import Recipe, recipe_from_dict
from georoutenet.train.step import CapturedStep, State, Step

CASES: dict[str, dict[str, object]] = {
    "n=50 batch=512 M=48": {"n": 50, "batch": 512, "candidates": 48, "baseline": "mean"},
    "n=50 batch=512 M=3": {"n": 50, "batch": 512, "candidates": 3},
    "n=50 batch=64 M=3": {"n": 50, "batch": 64, "candidates": 3},
    "n=100 batch=256 M=48": {"n": 100, "batch": 256, "candidates": 48, "baseline": "mean"},
}
PARTS = ("instances", "network", "sampling", "loss", "backward", "optimizer")


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def rate(function: Callable[[], None], seconds: float, device: torch.device) -> float:
    """Calls per second, over at least ``seconds``."""
    function()
    synchronize(device)
    began, calls = time.perf_counter(), 0
    while time.perf_counter() - began < seconds:
        for _ in range(10 if device.type == "cuda" else 1):
            function()
            calls += 1
        synchronize(device)
    return calls / (time.perf_counter() - began)


def breakdown(step: Step, device: torch.device, repeats: int) -> dict[str, float]:
    """Milliseconds of each part of the uncaptured step."""
    spent = dict.fromkeys(PARTS, 0.0)

    @contextmanager
    def part(name: str) -> Iterator[None]:
        synchronize(device)
        began = time.perf_counter()
        yield
        synchronize(device)
        spent[name] += 1000 * (time.perf_counter() - began) / repeats

    for _ in range(repeats):
        with part("instances"):
            coords, seed = step.draw()
        with part("network"):
            start, logits = step.network(coords)
        with part("sampling"):
            tours = rollout(start.detach(), logits.detach(), samples=step.recipe.candidates, seed=seed)
        with part("loss"):
            loss, values = step.loss_of(coords, start, logits, tours)
        with part("backward"):
            step.backward(loss)
        with part("optimizer"):
            step.state.optimizer.update(values)
    return spent


def show_kernels(step: Step, most: int = 40) -> None:
    """The GPU kernels of one uncaptured step, by time."""
    step()
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        step()
        torch.cuda.synchronize()
    kernels = sorted(profile.key_averages(), key=lambda kernel: -kernel.self_device_time_total)
    total = sum(kernel.self_device_time_total for kernel in kernels) / 1000
    print(f"{total:8.3f} ms in {sum(kernel.count for kernel in kernels)} kernels")
    for kernel in kernels[:most]:
        print(f"{kernel.self_device_time_total / 1000:8.3f} ms {kernel.count:5d} x {kernel.key[:100]}")


def write_trace(step: Callable[[], None], path: Path) -> None:
    """Start, duration and stream of every GPU kernel of one step as it runs in training."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        step()
        torch.cuda.synchronize()
    events = [event for event in profile.events() if event.device_type == torch.autograd.DeviceType.CUDA]
    events.sort(key=lambda event: event.time_range.start)
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["start_us", "duration_us", "stream", "kernel"])
        for event in events:
            start, end = event.time_range.start, event.time_range.end
            times = f"{start - events[0].time_range.start:.2f}", f"{end - start:.2f}"
            writer.writerow([*times, event.device_resource_id, event.name[:60].replace(",", " ")])


def owners_at_peak(events: Sequence[dict[str, Any]]) -> dict[str, int]:
    """Bytes by the line of this package that asked for them, when most were in use; from a trace of the
    allocator's events."""
    live: dict[int, tuple[int, str]] = {}
    now = most = 0
    at_peak: list[tuple[int, str]] = []
    for event in events:
        if event["action"] == "alloc":
            ours = [frame for frame in event["frames"] if "georoutenet" in frame["filename"]]
            owner = "PyTorch"
            if ours:
                owner = " < ".join(f"{Path(f['filename']).name}:{f['line']} {f['name']}" for f in ours[:2])
            live[event["addr"]] = (event["size"], owner)
            now += event["size"]
            if now > most:
                most, at_peak = now, list(live.values())
        elif event["action"] == "free_requested":
            now -= live.pop(event["addr"], (0, ""))[0]
    owners: dict[str, int] = defaultdict(int)
    for size, owner in at_peak:
        owners[owner] += size
    return dict(sorted(owners.items(), key=lambda item: -item[1]))


def show_memory(step: Step, most: int = 40) -> None:
    """What one uncaptured step holds when it holds most, beside what was there before."""
    step()
    torch.cuda.synchronize()
    torch.cuda.memory._record_memory_history(max_entries=1_000_000, stacks="python")
    step()
    torch.cuda.synchronize()
    events = torch.cuda.memory._snapshot()["device_traces"][torch.cuda.current_device()]
    torch.cuda.memory._record_memory_history(enabled=None)
    owners = owners_at_peak(events)
    print(f"{sum(owners.values()) / 2**20:9.1f} MiB at the peak")
    for owner, size in list(owners.items())[:most]:
        print(f"{size / 2**20:9.1f} MiB {owner}")


def form_of(policy: Policy, recipe: Recipe) -> str:
    """The form in which the network trains, and how it differs from the usual."""
    form = policy.form(torch.rand(recipe.batch, recipe.n, 2), recipe.policy.neighbors + 1)
    if form in CUDA and recipe.recompute:
        form += f", {recipe.recompute} of the edge states recomputed"
    return f"{form}, gradients of weights at once" if step_module.postponing is nullcontext else form


def measure(
    name: str,
    recipe: Recipe,
    device: torch.device,
    seconds: float,
    *,
    avoid: tuple[str, ...] = (),
    profile: bool = False,
    memory: bool = False,
    trace: Path | None = None,
) -> dict[str, object]:
    policy = make_policy(recipe)
    policy.avoid = avoid
    state = State(policy, recipe, device)
    began = time.perf_counter()
    (plain,) = make_steps(state, recipe_from_dict({**recipe.to_dict(), "cuda_graph": False}), device)
    assert isinstance(plain, Step)
    plain()
    if profile and device.type == "cuda":
        show_kernels(plain)
    if memory and device.type == "cuda":
        show_memory(plain)
    whole: Callable[[], None] = CapturedStep(plain) if device.type == "cuda" and recipe.cuda_graph else plain
    synchronize(device)
    ready = time.perf_counter() - began
    steps = rate(whole, seconds, device)
    if trace and device.type == "cuda":
        write_trace(whole, trace)
    row: dict[str, object] = {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "device": torch.cuda.get_device_name() if device.type == "cuda" else "cpu",
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "case": name,
        "encoder": recipe.policy.encoder,
        "precision": recipe.precision,
        "compile": recipe.compile,
        "fused": recipe.fused,
        "kernels": form_of(policy, recipe),
        "cuda_graph": recipe.cuda_graph,
        "steps_per_second": round(steps, 2),
        "instances_per_second": round(steps * recipe.batch),
        "ms_per_step": round(1000 / steps, 3),
        "preparation_seconds": round(ready, 1),
        "peak_gib": round(torch.cuda.max_memory_allocated() / 2**30, 2) if device.type == "cuda" else "",
    }
    parts = breakdown(plain, device, repeats=10 if device.type == "cuda" else 2)
    return {**row, **{f"{part}_ms": round(ms, 3) for part, ms in parts.items()}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument(
        "--csv", type=Path, default=Path(__file__).parents[1] / "results" / "gpu" / "training.csv"
    )
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", dest="settings")
    parser.add_argument("--case", choices=list(CASES), action="append", help="measure these cases alone")
    parser.add_argument("--profile", action="store_true", help="also print the step's GPU kernels by time")
    parser.add_argument("--memory", action="store_true", help="also print what holds the memory at its peak")
    parser.add_argument("--trace", type=Path, help="also write every GPU kernel of a replayed step to a file")
    parser.add_argument("--mma", action="store_true", help="the kernels' build for other GPUs on Hopper")
    parser.add_argument(
        "--at-once", action="store_true", help="gradients of weights not alongside the backward pass"
    )
    options = parser.parse_args()
    if options.at_once:
        step_module.postponing = nullcontext  # the loss is its value
    device = torch.device(options.device)
    precision = "bfloat16" if device.type == "cuda" else "float32"
    options.csv.parent.mkdir(parents=True, exist_ok=True)
    for name, settings in CASES.items():
        if options.case and name not in options.case:
            continue
        recipe = recipe_from_dict({"precision": precision, **settings}, options.settings)
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats()
        also = {"profile": options.profile, "memory": options.memory, "trace": options.trace}
        avoid = ("cuda hopper",) if options.mma else ()
        row = measure(name, recipe, device, options.seconds, avoid=avoid, **also)
        print("\n".join(f"{key:22s} {value}" for key, value in row.items()), end="\n\n", flush=True)
        is_new = not options.csv.exists()
        with open(options.csv, "a", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, row.keys())
            if is_new:
                writer.writeheader()
            writer.writerow(row)


if __name__ == "__main__":
    main()
