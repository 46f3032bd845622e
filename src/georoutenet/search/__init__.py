"""Tour -> better tour, and first tours without a network. Names are loaded on first use."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

_EXPORTS = {
    "Improved": "local_search",
    "greedy_edge": "construct",
    "improve": "local_search",
    "nearest_neighbor": "construct",
    "nearest_neighbors": "neighbors",
}

__all__ = [
    "Improved",
    "greedy_edge",
    "improve",
    "nearest_neighbor",
    "nearest_neighbors",
]

if TYPE_CHECKING:
    from georoutenet.search.construct import greedy_edge, nearest_neighbor
    from georoutenet.search.local_search import Improved, improve
    from georoutenet.search.neighbors import nearest_neighbors


def __getattr__(name: str) -> Any:
    if name in _EXPORTS:
        return getattr(import_module(f"georoutenet.search.{_EXPORTS[name]}"), name)
    raise AttributeError(f"module 'georoutenet.search' has no attribute {name!r}")
