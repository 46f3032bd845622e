"""Options of ``solve`` as JSON, for workers and for the fingerprint of a run."""

from __future__ import annotations

import hashlib
import itertools
from dataclasses import fields
from pathlib import Path
from typing import Any

from georoutenet.device import gpu_possible
from georoutenet.errors import InputError
from georoutenet.io.packaged import find_weights
from georoutenet.solver.options import SolveOptions
from georoutenet.stop import AnyOf, Gap, MaxIterations, MaxTime, NoImprovement, Stop

ROOT = Path(__file__).parent.parent
_STOPS: dict[str, Any] = {each.__name__: each for each in (MaxTime, MaxIterations, NoImprovement, Gap, AnyOf)}
_COUNTING = (MaxIterations, NoImprovement)
_ROOMS = ("problem", "io", "model", "kernels", "policy", "decode", "search", "solver", "bulk")
"""Rooms whose code can change a tour or a shard; so can that of the modules beside them."""
_SOURCES = (".py", ".cu", ".cuh")


def to_json(options: SolveOptions) -> dict[str, Any]:
    """All options that can change a tour. ``workers`` cannot, and ``progress`` has nobody to tell."""
    if options.progress is not None:
        raise InputError(
            "progress is of single instances; solve_bulk calls report with the number that is done"
        )
    if not isinstance(options.weights, (str, Path)):
        raise InputError(
            "a bulk run needs weights by name or as a file: its workers cannot have a Policy object"
        )
    content = {each.name: getattr(options, each.name) for each in fields(options)}
    for name in ("workers", "progress"):
        del content[name]
    content["weights"] = str(options.weights)
    content["decoder"] = None if options.decoder is None else str(options.decoder)
    content["stop"] = None if options.stop is None else _stop_to_json(options.stop)
    for name in ("improve", "closed"):
        content[name] = bool(content[name])
    content["device"] = _device(options.device)
    return content


def keywords(content: dict[str, Any], *, device: str | None, threads: int) -> dict[str, Any]:
    """What ``to_json`` wrote, as options of one worker: on its device, with its number of threads."""
    stop = None if content["stop"] is None else _stop_from_json(content["stop"])
    return {**content, "stop": stop, "device": device or content["device"], "workers": threads}


def _device(name: str) -> str:
    """``cpu`` or ``cuda``: which of the GPUs matters to no tour."""
    if not gpu_possible(name):
        return "cpu"
    from georoutenet.device import choose_device

    return choose_device(name).type


def _stop_to_json(stop: Stop) -> dict[str, Any]:
    name = type(stop).__name__
    if _STOPS.get(name) is not type(stop):
        raise InputError(
            f"a bulk run stops by {', '.join(_STOPS)}; got {stop!r}, which workers would not know"
        )
    if isinstance(stop, AnyOf):
        return {name: [_stop_to_json(each) for each in stop.criteria]}
    return {name: next(iter(vars(stop).values()))}


def _stop_from_json(content: dict[str, Any]) -> Stop:
    ((name, value),) = content.items()
    made: Stop = AnyOf(*map(_stop_from_json, value)) if name == "AnyOf" else _STOPS[name](value)
    return made


def bounded_by_time(options: SolveOptions) -> str:
    """Which option ends searches by the clock, so that shards do not repeat byte for byte; empty if none."""
    if options.max_seconds is not None:
        return f"max_seconds = {options.max_seconds:g}"

    def timed(stop: Stop) -> bool:
        if isinstance(stop, AnyOf):
            return any(timed(each) for each in stop.criteria)
        return not isinstance(stop, _COUNTING)

    return f"stop = {options.stop!r}" if options.stop is not None and timed(options.stop) else ""


def code_hash() -> str:
    """Of the sources that a tour or a shard depends on, the same in a checkout and in a wheel."""
    digest = hashlib.sha256()
    rooms = (sorted((ROOT / room).rglob("*")) for room in _ROOMS)
    for path in itertools.chain(sorted(ROOT.iterdir()), *rooms):
        if path.suffix in _SOURCES:
            digest.update(path.relative_to(ROOT).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


def weights_hash(content: dict[str, Any]) -> str:
    return hashlib.sha256(find_weights(content["weights"]).read_bytes()).hexdigest()
