# mypy: disallow-untyped-defs=False, disable-error-code=assignment
"""Minimum 1-trees (Held and Karp 1970, 1971): a lower bound on every tour, and which edges belong into one.

A 1-tree is a spanning tree with one edge more, so every tour is a 1-tree and none is shorter than the
shortest. Adding ``pi[i] + pi[j]`` to every distance adds the same to every tour, but not to every 1-tree: the
ascent raises the penalty of cities with more than two edges and lowers it at leaves, until the tree looks
much like a tour. The step sizes are Volgenant and Jonker's (1982): they fall from first to last iteration
along a parabola, and the direction remembers the one before.

The *alpha* of an edge is by how much the shortest 1-tree that contains it is longer (Helsgaun 2000): a far
better guess than the distance at which edges a short tour has.

During the ascent only edges of a sparse graph are looked at. The bound is taken from a tree over all pairs of
cities, else it would bound nothing.

Arrays are filled in loops: each of NumPy's functions and slices would be compiled too, seconds in all.
"""

from __future__ import annotations

import numpy as np

from georoutenet.jit import INNER, njit
from georoutenet.search.distances import distance

# Columns of ``tree``: the city's parent (or -1), the order in which cities joined, degree, degree before.
PARENT, ORDER, DEGREE, BEFORE = range(4)


@njit(nogil=True, level=1)
def sparse_graph(rule, x, y, neighbors, more):
    """The edges of neighbor lists and those of ``more`` (m, 2), both ways, none twice.

    Returns where each city's edges begin, their other ends and their lengths. Pairs in ``more`` of a city
    and itself are no edges.
    """
    n, width = neighbors.shape
    begin = np.empty(n + 1, dtype=np.int64)
    for city in range(n + 1):
        begin[city] = 0
    for city in range(n):
        begin[city + 1] += width
        for slot in range(width):
            begin[neighbors[city, slot] + 1] += 1
    for row in range(len(more)):
        begin[more[row, 0] + 1] += 1
        begin[more[row, 1] + 1] += 1
    for city in range(n):
        begin[city + 1] += begin[city]
    filled = np.empty(n, dtype=np.int64)
    for city in range(n):
        filled[city] = begin[city]
    ends = np.empty(begin[n], dtype=np.int32)
    for entry in range(n * width + len(more)):
        if entry < n * width:
            city, other = entry // width, np.int64(neighbors[entry // width, entry % width])
        else:
            city, other = np.int64(more[entry - n * width, 0]), np.int64(more[entry - n * width, 1])
        new = other != city
        for edge in range(begin[city], filled[city]):
            if ends[edge] == other:
                new = False
                break
        if new:
            ends[filled[city]] = other
            ends[filled[other]] = city
            filled[city] += 1
            filled[other] += 1
    kept = 0
    for city in range(n):
        first = begin[city]
        begin[city] = kept
        for edge in range(first, filled[city]):
            ends[kept] = ends[edge]
            kept += 1
    begin[n] = kept
    lengths = np.empty(kept)
    for city in range(n):
        for edge in range(begin[city], begin[city + 1]):
            lengths[edge] = distance(rule, x, y, city, np.int64(ends[edge]))
    return begin, ends, lengths


@njit(**INNER)
def _grow(begin, ends, lengths, pi, tree, cost, heap, place):
    """Shortest spanning tree under penalties, by Prim's method with a binary heap; returns its length.

    ``cost`` becomes the length of the edge to each city's parent. ``heap[place[c]]`` is c; ``place`` is -1
    for cities not seen yet and -2 for those in the tree.
    """
    n = len(pi)
    for city in range(n):
        place[city] = -1
        tree[city, BEFORE] = tree[city, DEGREE]
        tree[city, DEGREE] = 0
    total = 0.0
    heap[0] = 0
    place[0] = 0
    cost[0] = 0.0
    tree[0, PARENT] = -1
    held = 1
    for joined in range(n):
        city = heap[0]
        place[city] = -2
        tree[city, ORDER] = joined
        if tree[city, PARENT] >= 0:
            total += cost[city]
            tree[city, DEGREE] += 1
            tree[tree[city, PARENT], DEGREE] += 1
        held -= 1
        if held > 0:  # the last one sinks from the top
            last = heap[held]
            value = cost[last]
            hole = 0
            while True:
                child = 2 * hole + 1
                if child >= held:
                    break
                if child + 1 < held and cost[heap[child + 1]] < cost[heap[child]]:
                    child += 1
                if cost[heap[child]] >= value:
                    break
                heap[hole] = heap[child]
                place[heap[hole]] = hole
                hole = child
            heap[hole] = last
            place[last] = hole
        for edge in range(begin[city], begin[city + 1]):
            other = ends[edge]
            if place[other] == -2:
                continue
            value = lengths[edge] + pi[city] + pi[other]
            if place[other] == -1:
                hole = held
                held += 1
            elif value < cost[other]:
                hole = np.int64(place[other])
            else:
                continue
            cost[other] = value
            tree[other, PARENT] = city
            while hole > 0:
                above = (hole - 1) >> 1
                if cost[heap[above]] <= value:
                    break
                heap[hole] = heap[above]
                place[heap[hole]] = hole
                hole = above
            heap[hole] = other
            place[other] = hole
    return total


@njit(**INNER)
def _add_edge(begin, ends, lengths, pi, tree):
    """The edge that makes the tree a 1-tree: the longest second edge of a leaf; (length, leaf, other end)."""
    best, leaf, end = -np.inf, np.int64(-1), np.int64(-1)
    for city in range(len(pi)):
        if tree[city, DEGREE] != 1:
            continue
        second, other = np.inf, np.int64(-1)
        for edge in range(begin[city], begin[city + 1]):
            to = np.int64(ends[edge])
            if tree[city, PARENT] == to or tree[to, PARENT] == city:
                continue
            value = lengths[edge] + pi[city] + pi[to]
            if value < second:
                second, other = value, to
        if other >= 0 and second > best:
            best, leaf, end = second, city, other
    return best, leaf, end


@njit(nogil=True, level=1)
def ascend(begin, ends, lengths, pi, tree, groups, factors, first, last, iterations, first_step):
    """Iterations ``first`` to ``last`` of so many in Volgenant and Jonker's ascent; changes ``pi``.

    ``groups`` (levels, n) numbers the clusters that the cities fall into, if any. The degrees in a cluster
    less two each add up to the edges that leave it less two; all its penalties move by that, times a factor:
    where clusters lie far apart, moving single cities would take forever.

    ``tree`` (n, 4) remembers the degrees. Returns the best penalties met, and the length of their 1-tree on
    this graph less twice their sum.
    """
    n = len(begin) - 1
    best_pi = np.empty(n)
    for city in range(n):
        best_pi[city] = pi[city]
    cost = np.empty(n)
    heap, place = np.empty(n, dtype=np.int32), np.empty(n, dtype=np.int32)
    change, sums = np.empty(n), np.empty(n)
    best = -np.inf
    for iteration in range(first, last):
        total = _grow(begin, ends, lengths, pi, tree, cost, heap, place)
        extra, leaf, end = _add_edge(begin, ends, lengths, pi, tree)
        if leaf < 0:
            break
        tree[leaf, DEGREE] += 1
        tree[end, DEGREE] += 1
        penalties, is_tour = 0.0, True
        for city in range(n):
            penalties += pi[city]
            is_tour = is_tour and tree[city, DEGREE] == 2
        bound = total + extra - 2.0 * penalties
        if bound > best:
            best = bound
            for city in range(n):
                best_pi[city] = pi[city]
        if is_tour:
            break  # no bound is higher
        share = iteration / max(1, iterations - 1)
        step = first_step * (1.0 - share) * (1.0 - 0.5 * share)
        remember = 0.4 if iteration > 0 else 0.0
        for city in range(n):
            now, before = tree[city, DEGREE] - 2, tree[city, BEFORE] - 2
            change[city] = step * ((1.0 - remember) * now + remember * before)
            pi[city] += change[city]
        for level in range(len(groups)):
            for city in range(n):
                sums[city] = 0.0
            for city in range(n):
                sums[groups[level, city]] += change[city]
            for city in range(n):
                pi[city] += factors[level] * sums[groups[level, city]]
    return best_pi, best


@njit(nogil=True, level=1)
def tree_of(begin, ends, lengths, pi):
    """The shortest tree under penalties: its columns, and the length of the edge to each city's parent."""
    n = len(pi)
    tree, cost = np.empty((n, 4), dtype=np.int32), np.empty(n)
    heap, place = np.empty(n, dtype=np.int32), np.empty(n, dtype=np.int32)
    _grow(begin, ends, lengths, pi, tree, cost, heap, place)
    return tree, cost


@njit(nogil=True, level=1)
def alpha_nearest(begin, ends, lengths, pi, tree, cost, width):
    """The ``width`` cities of least alpha of every city (ties by distance), in order of distance."""
    n = len(pi)
    lists = np.empty((n, width), dtype=np.int32)
    alphas, near = np.empty(width), np.empty(width)
    for city in range(n):
        held = 0
        for edge in range(begin[city], begin[city + 1]):
            other = ends[edge]
            # The longest edge on the way in the tree would have to go.
            a, b, longest = np.int64(city), np.int64(other), -np.inf
            while a != b:
                if tree[a, ORDER] < tree[b, ORDER]:
                    a, b = b, a
                longest = max(longest, cost[a])
                a = np.int64(tree[a, PARENT])
            alpha = lengths[edge] + pi[city] + pi[other] - longest
            alpha = max(alpha, 0.0)
            spot = held
            while spot > 0 and (alpha, lengths[edge]) < (alphas[spot - 1], near[spot - 1]):
                spot -= 1
            if spot == width:
                continue
            held = min(held + 1, width)
            for k in range(held - 1, spot, -1):
                lists[city, k], alphas[k], near[k] = lists[city, k - 1], alphas[k - 1], near[k - 1]
            lists[city, spot], alphas[spot], near[spot] = other, alpha, lengths[edge]
        for k in range(1, held):  # by distance
            spot = k
            while spot > 0 and near[spot] < near[spot - 1]:
                near[spot], near[spot - 1] = near[spot - 1], near[spot]
                lists[city, spot], lists[city, spot - 1] = lists[city, spot - 1], lists[city, spot]
                spot -= 1
        for k in range(held, width):
            lists[city, k] = lists[city, held - 1]
    return lists


@njit(nogil=True, level=1)
def complete_bound(rule, x, y, pi):
    """Length of the shortest 1-tree over all pairs of cities, less twice the penalties: no tour is shorter.

    Returns it with each city's parent in the tree (its own for the root) and the other end of the shortest
    edge that is not in the tree, for leaves (the city itself for others).
    """
    n = len(pi)
    cost = np.empty(n)
    parent, second_end = np.empty(n, dtype=np.int64), np.empty(n, dtype=np.int64)
    degree, inside = np.empty(n, dtype=np.int32), np.empty(n, dtype=np.int32)
    penalties = 0.0
    for city in range(n):
        cost[city], parent[city], second_end[city] = np.inf, -1, city
        degree[city] = inside[city] = 0
        penalties += pi[city]
    total = 0.0
    city = 0
    for _ in range(n - 1):
        inside[city] = 1
        best, following = np.inf, -1
        for other in range(n):
            if inside[other]:
                continue
            value = distance(rule, x, y, city, other) + pi[city] + pi[other]
            if value < cost[other]:
                cost[other] = value
                parent[other] = city
            if cost[other] < best:
                best, following = cost[other], other
        total += best
        degree[following] += 1
        degree[parent[following]] += 1
        city = following
    longest = -np.inf
    for city in range(n):
        if degree[city] != 1:
            continue
        second = np.inf
        for other in range(n):
            if other == city or parent[city] == other or parent[other] == city:
                continue
            value = distance(rule, x, y, city, other) + pi[city] + pi[other]
            if value < second:
                second, second_end[city] = value, other
        longest = max(longest, second)
    parent[0] = 0
    return total + longest - 2.0 * penalties, parent, second_end
