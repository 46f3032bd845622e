"""Distances and nearest cities, batched, without an ``n x n`` array for large instances."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from georoutenet.unbroken import import_whole

# Above this many cities a k-d tree on the CPU is faster than sorting rows of the distance matrix.
TREE_FROM = 1024
# Rows of the distance matrix are sorted in blocks of about this many entries.
SORT_BLOCK = 1 << 24
SEEN = 4
# Distances within this share of each other tie at the boundary of a neighborhood. Cities on a lattice tie
# exactly, and float32 coordinates in the unit square part them by up to 2e-6 (TSPLIB, 51 to 299 cities):
# without it the last bit of a root, which differs between devices, would choose who is a neighbor.
BOUNDARY = 3e-6


def pair_distances(a: Tensor, b: Tensor) -> Tensor:
    """Eq. distance for coordinate tensors ``(..., 2)`` that broadcast against each other.

    Differences are taken first (no matrix-product expansion), so that the same pair gives the same bits
    in every layout. The gradient of a zero distance is not needed anywhere: coordinates are data.
    """
    difference = a - b
    return (difference * difference).sum(-1).sqrt()


@dataclass(frozen=True)
class Neighborhood:
    """``N_k(i)`` of every city: itself first, then its nearest cities, padded to a common width."""

    index: Tensor  # (B, n, W) int64
    mask: Tensor  # (B, n, W) bool, False on padding
    distance: Tensor  # (B, n, W)


def nearest(coords: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The ``count`` nearest other cities of every city, nearest first, ties by lower index.

    ``coords (B, n, 2)`` gives ``index (B, n, count)`` and ``distance (B, n, count)``.
    """
    n = coords.shape[1]
    if not 0 <= count <= n - 1:
        raise ValueError(f"count must be between 0 and {n - 1}, got {count}")
    if n > TREE_FROM and coords.device.type == "cpu" and 0 < 4 * count < n:
        return _nearest_by_tree(coords, count)
    rows = max(1, SORT_BLOCK // max(1, coords.shape[0] * n))
    blocks = [_nearest_of_rows(coords, first, min(first + rows, n), count) for first in range(0, n, rows)]
    if len(blocks) == 1:
        return blocks[0]
    return torch.cat([index for index, _ in blocks], 1), torch.cat([d for _, d in blocks], 1)


def _nearest_of_rows(coords: Tensor, first: int, last: int, count: int) -> tuple[Tensor, Tensor]:
    distance = pair_distances(coords[:, first:last, None], coords[:, None])  # (B, rows, n)
    cities = torch.arange(coords.shape[1], device=coords.device)
    itself = cities[first:last, None] == cities[None]
    order = distance.masked_fill(itself, torch.inf).sort(dim=-1, stable=True)
    return order.indices[..., :count], order.values[..., :count]


def around(coords: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """``count`` other cities near every city, nearest first, and with some from every side.

    Half of them are its nearest ones, and an eighth each the nearest in each of four quadrants around it;
    where these are the same, the next nearest follow. Where cities lie in knots or in rows, the nearest alone
    are all in one, and no tour leads out. Above `TREE_FROM` cities on a CPU the choice is among the `SEEN`
    times ``count`` nearest.
    """
    n = coords.shape[1]
    rows = max(1, SORT_BLOCK // max(1, coords.shape[0] * n))
    seen = SEEN * count if n > TREE_FROM and coords.device.type == "cpu" else n - 1
    if not 8 <= count < seen:
        return nearest(coords, count)
    if 4 * seen < n:
        return _sides(coords, coords, *nearest(coords, seen), count)
    blocks = []
    for low in range(0, n, rows):
        all_others = _nearest_of_rows(coords, low, min(low + rows, n), n - 1)
        blocks.append(_sides(coords[:, low : low + rows], coords, *all_others, count))
    return torch.cat([index for index, _ in blocks], 1), torch.cat([d for _, d in blocks], 1)


def _sides(
    here: Tensor, coords: Tensor, index: Tensor, distance: Tensor, count: int
) -> tuple[Tensor, Tensor]:
    """Of the cities at ``index (B, rows, M)``, nearest first, those that `around` takes."""
    x, y = (coords[..., k, None].expand(-1, -1, index.shape[2]).gather(1, index) for k in (0, 1))
    x, y = x - here[..., :1], y - here[..., 1:]
    taken = (torch.arange(index.shape[2], device=index.device) < count // 2).expand(index.shape)
    for side in ((x > 0) & (y >= 0), (x <= 0) & (y > 0), (x < 0) & (y <= 0), (x >= 0) & (y < 0)):
        taken = taken | side & (side.cumsum(2, dtype=torch.int32) <= count // 8)
    left = count - taken.sum(2, keepdim=True)
    taken = taken | ~taken & ((~taken).cumsum(2, dtype=torch.int32) <= left)
    place = taken.cumsum(2) - 1
    place = place.where(taken, count)  # what is not taken goes into a column that is cut off
    wide = (*index.shape[:2], count + 1)
    chosen = index.new_zeros(wide).scatter_(2, place, index)
    return chosen[..., :count], distance.new_zeros(wide).scatter_(2, place, distance)[..., :count]


def _nearest_by_tree(coords: Tensor, count: int) -> tuple[Tensor, Tensor]:
    import_whole("scipy.spatial")
    from scipy.spatial import cKDTree

    n = coords.shape[1]
    indices, distances = [], []
    for points in coords:
        tree = cKDTree(points.double().numpy())
        asked = min(n, count + 9)  # itself, the count nearest, and some ties
        while True:
            _, found = tree.query(points.double().numpy(), k=asked)
            found = (
                torch.from_numpy(found).sort(dim=-1).values
            )  # so that the stable sort breaks ties by index
            d = pair_distances(points[:, None], points[found])  # in the precision of the coordinates
            cut = d.masked_fill(found == torch.arange(n)[:, None], torch.inf).sort(dim=-1, stable=True)
            if asked == n or not _tie_may_be_missing(cut.values, count):
                break
            asked = min(n, 2 * asked)
        indices.append(found.gather(1, cut.indices[:, :count]))
        distances.append(cut.values[:, :count])
    return torch.stack(indices), torch.stack(distances)


def _tie_may_be_missing(sorted_distances: Tensor, count: int) -> bool:
    """Whether a city outside the found ones could be as near as the ``count``-th found.

    The last entry is infinite where the city itself was found; among many coincident cities it may not be,
    and then another coincident city may be missing as well.
    """
    furthest = sorted_distances.masked_fill(sorted_distances.isinf(), -torch.inf).amax(dim=-1)
    return bool((furthest <= sorted_distances[:, count - 1]).any())


def neighborhood(coords: Tensor, k: int, width: int | None = None) -> Neighborhood:
    """``N_k(i)``: the city itself and its ``k`` nearest others, distance ties at the boundary kept: whatever
    is at most ``BOUNDARY`` further than the ``k``-th.

    With fewer than ``k`` others, all of them. ``width`` fixes the padded width (static shapes for
    compiled training); ties beyond it are dropped. By default it is the largest neighborhood.
    """
    n = coords.shape[1]
    k = min(k, n - 1)
    itself = torch.arange(n, device=coords.device).view(1, n, 1).expand(coords.shape[0], n, 1)
    zero = torch.zeros_like(coords[..., :1])
    if k == 0:
        return Neighborhood(itself, torch.ones_like(itself, dtype=torch.bool), zero)
    count = min(n - 1, k + 6 if width is None else width - 1)
    while True:
        index, distance = nearest(coords, count)
        inside = distance <= distance[..., k - 1 : k] * (1 + BOUNDARY)
        if width is not None or count == n - 1 or not inside[..., -1].any():
            break
        count = min(n - 1, 2 * count)
    if width is None:
        count = int(inside.sum(-1).amax())
        index, distance, inside = index[..., :count], distance[..., :count], inside[..., :count]
    return Neighborhood(
        torch.cat([itself, index], -1),
        torch.cat([torch.ones_like(itself, dtype=torch.bool), inside], -1),
        torch.cat([zero, distance], -1),
    )
