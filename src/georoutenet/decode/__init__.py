"""Scores -> tours: greedy, sampling and beam search with one signature, and the replay of given tours."""

from georoutenet.decode.api import beam, compile_decoders, greedy, rollout, sample
from georoutenet.decode.common import Decoded
from georoutenet.decode.costs import Costs, tour_costs
from georoutenet.decode.replay import replay
from georoutenet.decode.views import make_views, solve_views

__all__ = [
    "Costs",
    "Decoded",
    "beam",
    "compile_decoders",
    "greedy",
    "make_views",
    "replay",
    "rollout",
    "sample",
    "solve_views",
    "tour_costs",
]
