"""Views: the same instance seen rotated and reflected, each decoded on its own, the best tour kept.

The network is not invariant to rotation, so views give it several opinions of one instance, and a total beam
width spread over views finds more than the same width spent on one. Costs always come from the original
instance.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Literal, get_args

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from georoutenet.decode.api import greedy, sample, search
from georoutenet.decode.beam_task import cheapest, prepare_beam, stacked
from georoutenet.decode.common import Backend, City, Decoded, prepare, whole
from georoutenet.decode.costs import Costs, as_costs
from georoutenet.errors import InputError
from georoutenet.model.scores import Scores
from georoutenet.problem.instance import Instance

ScoreFunction = Callable[[Tensor], Scores]
"""Coordinates ``(V, n, 2)`` float32 in the unit square -> scores of ``V`` instances: a policy, for one."""
Decoder = Literal["greedy", "sample", "beam"]
RECOMMENDED: dict[str, Any] = {"views": 8, "width": 1000, "dominance": True, "length_weight": 60.0}
"""Settings of ``solve_views`` for a good tour, chosen on val50 and diag100: see ``docs/decoding.md``."""


def view_matrices(count: int, seed: int) -> Tensor:
    """Orthogonal matrices ``(count, 2, 2)``: the eight of the square, identity first, then random ones."""
    count = whole("views", count)
    square = [
        [[sx, 0.0], [0.0, sy]] if straight else [[0.0, sx], [sy, 0.0]]
        for straight in (True, False)
        for sx in (1.0, -1.0)
        for sy in (1.0, -1.0)
    ]
    generator = np.random.Generator(np.random.PCG64(seed))
    matrices = square[:count]
    for _ in range(count - len(matrices)):
        angle = 2 * math.pi * generator.random()
        mirror = 1.0 if generator.random() < 0.5 else -1.0
        matrices.append(
            [[math.cos(angle), -mirror * math.sin(angle)], [math.sin(angle), mirror * math.cos(angle)]]
        )
    return torch.tensor(matrices, dtype=torch.float64)


def make_views(coordinates: Tensor | ArrayLike, count: int, seed: int = 0) -> Tensor:
    """``count`` views of each instance: ``(n, 2)`` gives ``(count, n, 2)``, ``(B, n, 2)`` a leading ``B``."""
    # A copy of what is not a tensor: torch warns of read-only arrays, such as an instance's coordinates.
    given = coordinates if isinstance(coordinates, Tensor) else np.array(coordinates)
    points = torch.as_tensor(given, dtype=torch.float64)
    return _seen(points[..., None, :, :], view_matrices(count, seed).to(points.device))


def _seen(points: Tensor, matrices: Tensor) -> Tensor:
    """Float64 ``points (..., n, 2)`` turned by ``matrices (..., 2, 2)`` and made to fill the unit square."""
    # About the center, so that far-away coordinates do not lose digits in the rotation.
    centered = points - points.mean(dim=-2, keepdim=True)
    turned = (centered[..., None, :] * matrices[..., None, :, :]).sum(dim=-1)
    return fill_square(turned)


def fill_square(points: Tensor) -> Tensor:
    """`georoutenet.problem.instance.normalize` of tensors ``(..., n, 2)``."""
    shifted = points - points.amin(dim=-2, keepdim=True)
    span = shifted.amax(dim=(-2, -1), keepdim=True)
    return shifted / torch.where(span > 0, span, 1.0)


def shares(total: int, views: int) -> list[int]:
    """How a total width is shared: as evenly as can be, the first views getting the rest; none gets zero."""
    views = min(views, total)
    return [total // views + (view < total % views) for view in range(views)]


@torch.no_grad()
def solve_views(
    score: ScoreFunction,
    coordinates: Tensor | ArrayLike | None = None,
    *,
    instances: Sequence[Instance] | None = None,
    views: int = 8,
    decoder: Decoder = "beam",
    width: int = 1000,
    seed: int = 0,
    batch: int = 128,
    device: torch.device | str = "cpu",
    dominance: bool = False,
    temperature: float = 1.0,
    length_weight: float = 0.0,
    start: City = None,
    end: City = None,
    closed: bool = True,
    finalists: int = 0,
    keep: int = 1,
    backend: Backend = "auto",
) -> Decoded:
    """Decode ``views`` views of each instance and return its ``keep`` cheapest tours, ``(B, keep, n)``.

    ``coordinates (B, n, 2)`` or ``instances`` (all of one size) give the problem and the cost. For beam and
    sampling ``width`` is the total number of beams or samples of an instance, shared by its views (fewer
    views than ``views`` where ``width`` is smaller); greedy decodes one tour per view. ``batch`` views go
    through the network at a time, on ``device``.

    With ``finalists`` the views of a beam get only a quarter of the width (a beam each at least), and so many
    of them, those that found the shortest tours, go through the network once more and share the rest; a tour
    may then be found twice.
    """
    if decoder not in get_args(Decoder):
        raise InputError(f"unknown decoder {decoder!r}; allowed: {', '.join(get_args(Decoder))}")
    views, width, keep, batch = (
        whole(name, value)
        for name, value in (("views", views), ("width", width), ("keep", keep), ("batch", batch))
    )
    costs = _costs(coordinates, instances, closed, torch.device(device))
    count = len(costs.coordinates)
    matrices = view_matrices(views, seed).to(costs.coordinates.device)
    finalists = whole("finalists", finalists, least=0) if decoder == "beam" else 0
    reserved = width - max(width // 4, min(views, width)) if 0 < finalists < views else 0
    widths = [1] * views if decoder == "greedy" else shares(width - reserved, views)

    def decode(instance: Tensor, view: Tensor, share: int, first: int) -> Decoded:
        """One network call: pairs of instance and view, all of one share of the width."""
        own = costs.selected(instance.tolist())
        scores = score(_seen(own.coordinates, matrices[view]).float())
        fixed = {"start": _selected(start, instance), "end": _selected(end, instance)}
        if decoder == "beam":
            task = prepare_beam(
                prepare(scores, temperature=temperature, coordinates=own.coordinates, **fixed),
                own,
                width=share,
                keep=keep,
                dominance=dominance,
                length_weight=length_weight,
            )
            return search(task, backend)
        where: dict[str, Any] = {"coordinates": own.coordinates, "backend": backend, **fixed}
        if decoder == "greedy":
            found = greedy(scores, **where)
        else:
            found = sample(scores, share, seed=seed + first, temperature=temperature, **where)
        return cheapest(found.tours, found.log_probabilities, own, keep)

    def sweep(chosen: Tensor, shares_of_chosen: list[int]) -> list[Decoded]:
        """Decode these views of each instance ``(B, V)``, each with its share, wider ones first."""
        parts = []
        for share in sorted(set(shares_of_chosen), reverse=True):
            view = chosen[:, [place for place, one in enumerate(shares_of_chosen) if one == share]]
            instance = torch.arange(count).repeat_interleave(view.shape[1])
            view = view.flatten()
            found = [
                decode(instance[low : low + batch], view[low : low + batch], share, low)
                for low in range(0, len(instance), batch)
            ]
            parts.append(_grouped(stacked(found), count))
        return parts

    parts = sweep(torch.arange(len(widths)).expand(count, -1), widths)
    if reserved:
        counts = [widths.count(share) for share in sorted(set(widths), reverse=True)]
        best = [_lengths_by_view(part, count) for part, count in zip(parts, counts, strict=True)]
        order = torch.sort(torch.cat(best, dim=1), dim=1, stable=True).indices.cpu()
        last = shares(reserved, finalists)
        parts += sweep(order[:, : len(last)], last)
    return _best(parts, keep)


def _costs(
    coordinates: Tensor | ArrayLike | None,
    instances: Sequence[Instance] | None,
    closed: bool,
    device: torch.device,
) -> Costs:
    if coordinates is not None:
        given = torch.as_tensor(coordinates)
        if given.dim() != 3 or given.shape[2] != 2:
            raise InputError(f"coordinates must have shape (B, n, 2), got {tuple(given.shape)}")
        count, n = given.shape[0], given.shape[1]
    elif instances:
        count, n = len(instances), instances[0].n
    else:
        raise InputError("give coordinates (B, n, 2) or a list of instances")
    costs = as_costs(count, n, device, coordinates=coordinates, instances=instances, closed=closed)
    assert costs is not None
    return costs


def _selected(city: City, instance: Tensor) -> City:
    """A fixed city for each of the chosen instances."""
    given = None if city is None else torch.as_tensor(city).reshape(-1)
    return given if given is None or len(given) == 1 else given[instance]


def _grouped(decoded: Decoded, count: int) -> Decoded:
    """Results of ``B * V`` views as those of ``B`` instances."""
    assert decoded.log_probabilities is not None
    assert decoded.lengths is not None
    n = decoded.tours.shape[2]
    return Decoded(
        decoded.tours.reshape(count, -1, n),
        decoded.log_probabilities.reshape(count, -1),
        decoded.lengths.reshape(count, -1),
    )


def _lengths_by_view(decoded: Decoded, views: int) -> Tensor:
    """The cheapest length of each of so many views ``(B, V)``."""
    assert decoded.lengths is not None
    return decoded.lengths.unflatten(1, (views, -1)).amin(2)


def _best(parts: list[Decoded], keep: int) -> Decoded:
    """The cheapest of all tours found; equal ones in the order of the views."""
    tours, chances, lengths = (
        torch.cat([getattr(part, name) for part in parts], dim=1)
        for name in ("tours", "log_probabilities", "lengths")
    )
    order = torch.sort(lengths, dim=1, stable=True).indices[:, :keep]
    rows = torch.arange(len(order), device=order.device)[:, None]
    return Decoded(tours[rows, order], chances[rows, order], lengths[rows, order])
