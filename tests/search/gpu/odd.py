"""Instances of odd kinds."""

from __future__ import annotations

import numpy as np
import torch


def odd(kind: str, n: int, seed: int = 0, count: int = 1) -> torch.Tensor:
    random = np.random.default_rng([n, seed])
    points = random.random((count, n, 2))
    if kind == "duplicates":
        points = points[:, random.integers(0, max(1, n // 4), n)]
    elif kind == "one place":
        points = np.repeat(points[:, :1], n, axis=1)
    elif kind == "collinear":
        points[..., 1] = points[..., 0] / 3
    elif kind == "lattice":
        points = np.stack([np.arange(n) % 5, np.arange(n) // 5], axis=1)[random.permutation(n)][None] * 7.0
        points = np.repeat(points, count, axis=0)
    elif kind == "clusters":
        points = np.round(points * 3) + 1e-4 * random.random(points.shape)
    elif kind == "far away":
        points = 1e7 + 1e-3 * points
    return torch.from_numpy(points.copy())


KINDS = ("uniform", "duplicates", "one place", "collinear", "lattice", "clusters", "far away")
