"""The network alone: the tour that it makes without a search, and what it thinks of the edges."""

import numpy as np

import georoutenet as grn

cities = grn.Instance(np.random.default_rng(4).random((60, 2)), name="60 random points")
best = grn.solve(cities)
for decoder in ("greedy", "beam-100", "beam-400-views-4-dominance-length-60-merge"):
    result = grn.solve(cities, improve=False, decoder=decoder)
    above = max(0.0, 100 * (result.length / best.length - 1))  # equal but for rounding
    print(f"{decoder}: {above:.2f} % above the search's tour")
result.plot("network.png", probabilities=True)
