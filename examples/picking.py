"""A warehouse: how far does a picker walk for each of 500 lists, and what would a second depot save?"""

import numpy as np

import georoutenet as grn

random = np.random.default_rng(0)
aisle, shelf = random.integers(0, 20, (500, 15)), random.integers(0, 40, (500, 15))
items = np.stack([aisle * 3.0, shelf * 1.0], axis=-1)  # meters
for name, depot in {"at the corner": (0.0, 0.0), "in the middle": (28.5, 0.0)}.items():
    lists = np.concatenate([np.broadcast_to(depot, (500, 1, 2)), items], axis=1)
    tours, lengths = grn.solve_batch(lists, rule="MAN_2D")
    print(f"depot {name}: {lengths.mean():.1f} m a list")
