"""GeoRouteNet: a geometry-aware non-autoregressive neural solver for the Euclidean TSP.

Importing the package is cheap: names are loaded from their modules on first use, and nothing here
imports torch before it is needed.
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

# Torch's threads spin while they wait for each other, and on a busy machine the one waited for may not be
# running: with two threads on two busy cores the network took twenty times as long. A short spin costs
# nothing when the cores are free. Only a default, and only where torch is not loaded yet.
os.environ.setdefault("GOMP_SPINCOUNT", "10000")

__version__ = "0.1.0"

_EXPORTS = {
    "AnyOf": "improve.stop",
    "DistanceRule": "instance",
    "GeoRouteNetError": "errors",
    "InputError": "errors",
    "Instance": "instance",
    "MaxIterations": "improve.stop",
    "MaxTime": "improve.stop",
    "NoImprovement": "improve.stop",
    "Result": "result",
    "canonical": "tour",
    "gap": "tour",
    "load_policy": "model.weights",
    "load_tsplib": "tsplib",
    "read_instance": "files",
    "read_tour": "files",
    "solve": "solver",
    "solve_many": "solver",
    "tour_length": "tour",
    "write_instance": "files",
    "write_tour": "files",
}

__all__ = ["__version__", *_EXPORTS]

if TYPE_CHECKING:
    from georoutenet.errors import GeoRouteNetError, InputError
    from georoutenet.files import read_instance, read_tour, write_instance, write_tour
    from georoutenet.improve.stop import AnyOf, MaxIterations, MaxTime, NoImprovement
    from georoutenet.instance import DistanceRule, Instance
    from georoutenet.model.weights import load_policy
    from georoutenet.result import Result
    from georoutenet.solver import solve, solve_many
    from georoutenet.tour import canonical, gap, tour_length
    from georoutenet.tsplib import load_tsplib


def __getattr__(name: str) -> Any:
    if name in _EXPORTS:
        return getattr(import_module(f"georoutenet.{_EXPORTS[name]}"), name)
    raise AttributeError(f"module 'georoutenet' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
