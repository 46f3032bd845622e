"""Tour -> better tour, and first tours without a network. Names are loaded on first use."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

_EXPORTS = {
    "AnyOf": "stop",
    "Improved": "local_search",
    "MaxIterations": "stop",
    "MaxTime": "stop",
    "NoImprovement": "stop",
    "greedy_edge": "construct",
    "improve": "local_search",
    "nearest_neighbor": "construct",
    "nearest_neighbors": "neighbors",
}

__all__ = [
    "AnyOf",
    "Improved",
    "MaxIterations",
    "MaxTime",
    "NoImprovement",
    "greedy_edge",
    "improve",
    "nearest_neighbor",
    "nearest_neighbors",
]

if TYPE_CHECKING:
    from georoutenet.improve.construct import greedy_edge, nearest_neighbor
    from georoutenet.improve.local_search import Improved, improve
    from georoutenet.improve.neighbors import nearest_neighbors
    from georoutenet.improve.stop import AnyOf, MaxIterations, MaxTime, NoImprovement


def __getattr__(name: str) -> Any:
    if name in _EXPORTS:
        return getattr(import_module(f"georoutenet.improve.{_EXPORTS[name]}"), name)
    raise AttributeError(f"module 'georoutenet.improve' has no attribute {name!r}")
