"""First tours of large instances, and the lists of neighbors that they share with the search.

Nothing here takes much longer than the time that is left: lists are made block by block under the clock, and
how long they took says how fast this machine is now.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from georoutenet.clock import now, watch_compiler
from georoutenet.problem.instance import DistanceRule, Instance
from georoutenet.problem.tour import Tour, tour_length
from georoutenet.search.neighbors import MANY, candidates_of_many, spatial_points
from georoutenet.search.space_filling import space_filling_curve
from georoutenet.unbroken import import_whole

LISTS, GREEDY, CURVE, SET_UP, MEASURE = 2e-6, 2.5e-6, 0.6e-6, 1e-6, 1e-7
"""Seconds per city on an idle core: lists of neighbors by one thread, greedy edge with them, a curve; what
the search does before its first window, what it takes to measure a tour."""
MARGIN = 1.5
"""Room asked for such work, in multiples of its time."""
SLOW = 2.0
"""By how much lists that took long lengthen the estimate for greedy edge, at most: code was loaded too."""
SHORT = 5
"""Neighbors of a city among which greedy edge looks first."""

Lists = NDArray[np.int32]
Left = Callable[[], float]
"""Seconds that are left, none or less after Ctrl-C."""


def is_large(instance: Instance) -> bool:
    """Whether the tour begins here: searched window by window, no matrix."""
    return instance.n > MANY and instance.matrix is None


def make_lists(instance: Instance, workers: int, left: Left) -> Lists | None:
    """The search's candidates; None where there is no time for them."""
    if MARGIN * (LISTS / workers + SET_UP) * instance.n > left():
        return None
    spare = MARGIN * CURVE * instance.n
    return candidates_of_many(instance, workers=workers, goes_on=lambda: left() > spare)


def first_tour(instance: Instance, workers: int, left: Left, load: float) -> tuple[Tour, str, Lists | None]:
    """Greedy edge, or along a curve where even that takes too long; its name, and lists if there are any.

    ``load`` is how many seconds loading compiled code takes.
    """
    n, lists, began = instance.n, None, now()
    if MARGIN * (LISTS / workers + GREEDY) * n + load <= left():
        watch_compiler()
        lists = make_lists(instance, workers, left)
        slow = min(SLOW, max(1.0, (now() - began - load) / (LISTS / workers * n)))
        if lists is not None and MARGIN * GREEDY * slow * n <= left():
            import_whole("georoutenet.search.construct")
            from georoutenet.search.construct import greedy_edge

            return greedy_edge(spatial_points(instance), lists[:, :SHORT]), "greedy edge", lists
    return space_filling_curve(instance.plane), "space-filling curve", lists


def shorten_curve(instance: Instance, tour: Tour, *, closed: bool, left: Left) -> Tour:
    """A tour along a curve after Or-opt moves near by, if it is shorter under the instance's rule."""
    import_whole("georoutenet.search.along")
    from georoutenet.search.along import shorten_along

    spare = 2 * MARGIN * MEASURE * instance.n
    found = shorten_along(instance.plane, tour, lambda: left() > spare)
    if instance.rule is DistanceRule.EUCLIDEAN:
        return found
    shorter = tour_length(instance, found, closed=closed) < tour_length(instance, tour, closed=closed)
    return found if shorter else tour
