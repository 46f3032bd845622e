"""Limits, stopping criteria, and how far from optimal a tour can be."""

import numpy as np

import georoutenet as grn

cities = np.random.default_rng(7).random((300, 2))
grn.warm_up()  # so that short limits are not spent on loading
for name, options in {
    "half a second": {"max_seconds": 0.5},
    "within 2 % of the bound": {"stop": grn.Gap(2.0)},  # the bound itself is mostly 0.7 to 1 % too low
    "2,000 kicks, repeatable": {"stop": grn.MaxIterations(2000)},
}.items():
    result = grn.solve(cities, **options)
    print(f"{name}: {result.length:.4f}, at most {result.gap_bound:.2f} % above optimal")
