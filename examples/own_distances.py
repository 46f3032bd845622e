"""Travel times in seconds, which differ by direction: the tour, and the direction in which it is driven."""

import numpy as np

import georoutenet as grn

random = np.random.default_rng(1)
places = random.random((12, 2)) * 4000
times = np.hypot(*(places[:, None] - places).transpose(2, 0, 1)) / 10 * random.uniform(1.0, 1.5, (12, 12))
np.fill_diagonal(times, 0)

problem = grn.Asymmetric(times)
tour = problem.tour(grn.solve(problem.doubled()).tour)
print(f"{problem.length(tour) / 60:.1f} minutes, the other way around {problem.length(tour[::-1]) / 60:.1f}")
