"""Scores -> tours: greedy, sampling and beam search with one signature, views, and the replay of given tours.

Names are loaded on first use: a ``Decoding`` can be made and checked without torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

_EXPORTS = {
    "Costs": "costs",
    "Decoded": "common",
    "Decoding": "decoding",
    "RECOMMENDED": "decoding",
    "beam": "api",
    "compile_decoders": "api",
    "decode_views": "views",
    "greedy": "api",
    "make_views": "views",
    "rollout": "api",
    "sample": "api",
    "tour_costs": "costs",
}

if TYPE_CHECKING:
    from georoutenet.decode.api import beam, compile_decoders, greedy, rollout, sample
    from georoutenet.decode.common import Decoded
    from georoutenet.decode.costs import Costs, tour_costs
    from georoutenet.decode.decoding import RECOMMENDED, Decoding
    from georoutenet.decode.views import decode_views, make_views

__all__ = [
    "RECOMMENDED",
    "Costs",
    "Decoded",
    "Decoding",
    "beam",
    "compile_decoders",
    "decode_views",
    "greedy",
    "make_views",
    "rollout",
    "sample",
    "tour_costs",
]


def __getattr__(name: str) -> Any:
    if name in _EXPORTS:
        return getattr(import_module(f"georoutenet.decode.{_EXPORTS[name]}"), name)
    if name == "solve_views":
        raise AttributeError("solve_views of 0.1 became decode_views, whose settings are one Decoding")
    raise AttributeError(f"module 'georoutenet.decode' has no attribute {name!r}")
