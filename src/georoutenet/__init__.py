"""GeoRouteNet: a geometry-aware non-autoregressive neural solver for the Euclidean TSP.

Importing the package is cheap: names are loaded from their modules on first use, and nothing here
imports torch before it is needed. Not even typing is: until a command has taken Ctrl-C in hand, whatever is
imported is a moment in which it ends in a traceback.
"""

from __future__ import annotations

import os
import sys

from georoutenet.moved import register

TYPE_CHECKING = False  # type checkers take it for true

# Torch's threads spin while they wait for each other, and on a busy machine the one waited for may not be
# running: with two threads on two busy cores the network took twenty times as long. A short spin costs
# nothing when the cores are free. Only a default, and only where torch is not loaded yet.
os.environ.setdefault("GOMP_SPINCOUNT", "10000")

__version__ = "0.2.0"

# Where each name is. Type checkers read the imports below and the list `__all__`; a test compares the three.
_EXPORTS = {
    "AnyOf": "stop",
    "Asymmetric": "problem.asymmetric",
    "Decoding": "decode.decoding",
    "DistanceRule": "problem.instance",
    "Gap": "stop",
    "GeoRouteNetError": "errors",
    "InputError": "errors",
    "Instance": "problem.instance",
    "MaxIterations": "stop",
    "MaxTime": "stop",
    "NoImprovement": "stop",
    "Policy": "policy.policy",
    "Progress": "stop",
    "Result": "solver.result",
    "SolveOptions": "solver.options",
    "canonical": "problem.tour",
    "decode_views": "decode.views",
    "gap": "problem.tour",
    "load_policy": "policy.weights",
    "load_tsplib": "io.tsplib",
    "read_instance": "io.files",
    "read_tour": "io.files",
    "show_versions": "solver.versions",
    "solve": "solver.api",
    "solve_batch": "solver.batch",
    "solve_bulk": "bulk.api",
    "solve_many": "solver.api",
    "tour_length": "problem.tour",
    "warm_up": "solver.stages",
    "write_instance": "io.files",
    "write_tour": "io.files",
}

__all__ = [
    "AnyOf",
    "Asymmetric",
    "Decoding",
    "DistanceRule",
    "Gap",
    "GeoRouteNetError",
    "InputError",
    "Instance",
    "MaxIterations",
    "MaxTime",
    "NoImprovement",
    "Policy",
    "Progress",
    "Result",
    "SolveOptions",
    "__version__",
    "canonical",
    "decode_views",
    "gap",
    "load_policy",
    "load_tsplib",
    "read_instance",
    "read_tour",
    "show_versions",
    "solve",
    "solve_batch",
    "solve_bulk",
    "solve_many",
    "tour_length",
    "warm_up",
    "write_instance",
    "write_tour",
]

if TYPE_CHECKING:
    from typing import Any

    from georoutenet.bulk.api import solve_bulk
    from georoutenet.decode.decoding import Decoding
    from georoutenet.decode.views import decode_views
    from georoutenet.errors import GeoRouteNetError, InputError
    from georoutenet.io.files import read_instance, read_tour, write_instance, write_tour
    from georoutenet.io.tsplib import load_tsplib
    from georoutenet.policy.policy import Policy
    from georoutenet.policy.weights import load_policy
    from georoutenet.problem.asymmetric import Asymmetric
    from georoutenet.problem.instance import DistanceRule, Instance
    from georoutenet.problem.tour import canonical, gap, tour_length
    from georoutenet.solver.api import solve, solve_many
    from georoutenet.solver.batch import solve_batch
    from georoutenet.solver.options import SolveOptions
    from georoutenet.solver.result import Result
    from georoutenet.solver.stages import warm_up
    from georoutenet.solver.versions import show_versions
    from georoutenet.stop import AnyOf, Gap, MaxIterations, MaxTime, NoImprovement, Progress

register()  # the modules of 0.1 that moved


def __getattr__(name: str) -> Any:
    if name in _EXPORTS:
        from georoutenet.unbroken import import_whole

        module = f"georoutenet.{_EXPORTS[name]}"
        import_whole(module)
        return getattr(sys.modules[module], name)
    raise AttributeError(f"module 'georoutenet' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
