"""From home to the station through ten shops: the ends are fixed, and nobody goes back."""

import numpy as np

import georoutenet as grn

places = np.random.default_rng(3).random((12, 2))
result = grn.solve(places, start=0, end=11, closed=False)
print("in this order:", *result.tour)
print(f"{result.length:.3f}; with the way back it would be {grn.solve(places).length:.3f}")
result.plot("path.png")
