"""The rules of the GPU's search in plain Python: one city, one neighbor, one edge after the other.

Which steps are allowed is not computed from positions, as the kernel does, but tried out: edges leave and
enter, and what is left has to be one cycle.
"""

from __future__ import annotations

import struct
from itertools import pairwise
from typing import Any

import numpy as np

from georoutenet.crossover import ROOM, take_better_parts

F = np.float32
NEAR, LOG, SEGMENT, STEPS, WAITING = 8, 128, 50, 20, 32
DRIFT = F(64)


def edges_of(tour: list[int]) -> set[frozenset[int]]:
    return {frozenset(pair) for pair in pairwise([*tour, tour[0]])}


def is_cycle(edges: set[frozenset[int]], n: int) -> bool:
    """Whether these edges are a tour of all cities."""
    links: dict[int, list[int]] = {}
    if any(len(edge) < 2 for edge in edges):
        return False
    for a, b in edges:
        links.setdefault(a, []).append(b)
        links.setdefault(b, []).append(a)
    if len(links) < n or any(len(each) != 2 for each in links.values()):
        return False
    met, before, city = 1, 0, links[0][0]
    while city != 0:
        met += 1
        before, city = city, links[city][links[city][0] == before]
    return met == n


class SlowSearch:
    def __init__(
        self,
        places: np.ndarray,
        lists: np.ndarray,
        tour: list[int],
        random: int,
        *,
        rule: int = 0,
        fixed: int | None = None,
        free: bool = False,
        tolerance: float = 3e-7,
        depth: int = 5,
        patience: int = 300,
        bridges: int = 20,
        slack: float = 0.1,
        margin: float = 1.0,
    ) -> None:
        self.places, self.tour, self.n = places, list(tour), len(tour)
        self.lists = [row[: min(NEAR, self.n - 1)].tolist() for row in lists]
        self.random, self.rule, self.depth = random, rule, depth
        self.fixed = len(tour) if fixed is None else fixed
        self.free = self.n - 1 if free else -1
        self.tolerance = F(tolerance)
        self.patience, self.bridges = patience, bridges
        self.slack, self.margin = F(slack), F(margin)
        self.queue: list[int] = []
        self.log: list[tuple[int, int]] = []
        self.best, self.best_length = list(tour), 0.0
        self.behind = F(0)
        self.idle = self.walks = self.agreed = 0
        self.leads = False
        self.units = (-np.log((np.arange(64) + 0.5) / 64)).astype(F)

    def distance(self, i: int, j: int) -> Any:
        dx, dy = self.places[i] - self.places[j]
        d = np.sqrt(F(F(dx * dx) + F(dy * dy)))
        d = {0: d, 1: np.floor(F(d + F(0.5))), 2: np.ceil(d)}[self.rule]
        if self.free in (i, j):
            d = F(0)
        return F(-1e30) if min(i, j) >= self.fixed else F(d)

    def draw(self, bound: int) -> int:
        x = self.random
        x ^= x >> 12
        x ^= x << 25 & (1 << 64) - 1
        self.random = x ^ x >> 27
        return (self.random * 2685821657736338717 % (1 << 64) >> 33) * bound >> 31

    def push(self, city: int) -> None:
        if city not in self.queue:
            self.queue.append(city)

    # -- the tour ----------------------------------------------------------------------------------------

    def reverse(self, i: int, j: int) -> None:
        count = (j - i) % self.n + 1
        positions = [(i + k) % self.n for k in range(count)]
        cities = [self.tour[p] for p in positions]
        for p, city in zip(positions, reversed(cities), strict=True):
            self.tour[p] = city

    def reverse_and_log(self, i: int, j: int) -> None:
        if i != j:
            self.log.append((i, j))
            self.reverse(i, j)

    def undo(self, mark: int) -> None:
        while len(self.log) > mark:
            self.reverse(*self.log.pop())

    def exchange(self, a: int, b: int, c: int, d: int) -> None:
        """Edges ab, cd become ac, bd, by reversing the shorter side."""
        p = {city: k for k, city in enumerate(self.tour)}
        i, j = (p[b], p[c]) if (p[a] + 1) % self.n == p[b] else (p[a], p[d])
        if 2 * ((j - i) % self.n + 1) > self.n:
            i, j = (j + 1) % self.n, (i - 1) % self.n
        before = edges_of(self.tour)
        self.reverse_and_log(i, j)
        left = {frozenset((a, b)), frozenset((c, d))}
        assert edges_of(self.tour) == before - left | {frozenset((a, c)), frozenset((b, d))}

    # -- steps -------------------------------------------------------------------------------------------

    def find(self, t1: int, t2: int, gain: Any, may_stay_open: bool) -> tuple[Any, ...] | None:
        """The step taken: (gain, whether it closes, exchanges, t3, t4, t5, t6), or None."""
        n, edges = self.n, edges_of(self.tour)
        start = self.tour.index(t2)
        step = 1 if self.tour[start - 1] == t1 else -1
        path = [self.tour[(start + step * k) % n] for k in range(n)]  # from t2 on to t1
        beside = lambda city: {path[path.index(city) - 1], path[(path.index(city) + 1) % n]}  # noqa: E731
        left_open: list[tuple[Any, ...]] = []
        for pair in range(0, len(self.lists[t2]), 2):
            closing: list[tuple[Any, ...]] = []
            in_reach = False
            for half, t3 in enumerate(self.lists[t2][pair : pair + 2]):
                gain1 = F(gain - self.distance(t2, t3))
                if not gain1 > self.tolerance:
                    continue
                in_reach = True
                if t3 in beside(t2):
                    continue
                for side in range(2):
                    t4 = path[path.index(t3) + (-1, 1)[side]]
                    gain2 = F(gain1 + self.distance(t3, t4))
                    lane = 16 * half + 8 * side
                    if side == 0:
                        g = F(gain2 - self.distance(t4, t1))
                        closing.append((g, lane, pair, -1, [(t1, t2, t4, t3)], t3, t4, t1, t2))
                    for second, t5 in enumerate(self.lists[t4]):
                        gain3 = F(gain2 - self.distance(t4, t5))
                        if not gain3 > self.tolerance or t5 in beside(t4) or t5 == t1:
                            continue
                        at = path.index(t5)
                        for kind, t6 in enumerate((path[(at + 1) % n], path[at - 1])):
                            leave = {frozenset(e) for e in ((t1, t2), (t3, t4), (t5, t6))}
                            enter = {frozenset(e) for e in ((t2, t3), (t4, t5), (t6, t1))}
                            if len(leave) < 3 or not leave <= edges or not is_cycle(edges - leave | enter, n):
                                continue
                            opened = F(gain3 + self.distance(t5, t6))
                            g = F(opened - self.distance(t6, t1))
                            if side == 0:
                                moves = [(t1, t2, t4, t3), (t1, t4, t6, t5)]
                            elif kind == 0:
                                moves = [(t1, t2, t3, t4), (t1, t3, t6, t5), (t3, t5, t2, t4)]
                            else:
                                moves = [(t1, t2, t6, t5), (t2, t5, t3, t4)]
                            order = (lane + second, pair, kind)
                            closing.append((g, *order, moves, t3, t4, t5, t6))
                            left_open.append((opened, *order, moves, t3, t4, t5, t6))
            closing = [each for each in closing if each[0] > self.tolerance]
            if closing:
                found = min(closing, key=lambda each: (-each[0], *each[1:4]))
                return found[0], True, *found[4:]
            if not in_reach:
                break
        left_open = [each for each in left_open if each[0] > self.tolerance]
        if not may_stay_open or not left_open:
            return None
        found = min(left_open, key=lambda each: (-each[0], *each[1:4]))
        return found[0], False, *found[4:]

    def improve(self, t1: int, depth: int) -> Any:
        mark = len(self.log)
        for start in (1, -1):
            t2 = self.tour[(self.tour.index(t1) + start) % self.n]
            gain, touched = self.distance(t1, t2), list[int]()
            for level in range(depth):
                found = self.find(t1, t2, gain, level + 1 < depth)
                if found is None:
                    break
                gain, closes, moves, *cities = found
                for move in moves:
                    self.exchange(*move)
                touched += [t1, t2, *cities]
                if closes:
                    for city in touched:
                        self.push(city)
                    return gain
                t2 = cities[-1]
            self.undo(mark)
        return F(0)

    def repair(self, gain: Any, is_deep: bool, hope: Any) -> Any:
        waiting: list[int] = []
        depth, looks = self.depth if is_deep else 1, 100 * self.n if is_deep else 1000
        while looks > 0:
            looks -= 1
            if not self.queue:
                if not waiting or abs(gain) <= self.tolerance or -gain > hope:
                    break
                for city in waiting:
                    self.push(city)
                waiting, depth = [], self.depth
                continue
            if is_deep:
                self.log.clear()
            elif len(self.log) + 3 * self.depth > LOG:
                break
            city = self.queue.pop(0)
            gained = self.improve(city, depth)
            gain = F(gain + gained)
            if not is_deep and gained > 0 and abs(gain) <= self.tolerance:
                break
            if depth < self.depth and gained == 0 and city not in waiting and len(waiting) < WAITING:
                waiting.append(city)
        self.queue.clear()
        return gain

    # -- kicks -------------------------------------------------------------------------------------------

    def in_a_row(self) -> tuple[int, int, int, int]:
        longest = max(1, min(SEGMENT, (self.n - 1) // 3))
        first = self.draw(self.n)
        return first, *(1 + self.draw(longest) for _ in range(3))

    def nearby(self) -> tuple[int, int, int, int]:
        n, origin = self.n, self.draw(self.n)
        taken = [self.tour.index(origin)]
        self.draw(2)
        for lane in (1, 2, 3):
            steps = self.random * (2 * lane + 1) % (1 << 64)
            steps ^= steps >> 29
            city = origin
            for _ in range(STEPS):
                city = self.lists[city][(steps & 7) % len(self.lists[city])]
                steps >>= 3
            p = self.tour.index(city)
            while p in taken:
                p = (p + 1) % n
            taken.append(p)
        p = sorted(taken)
        widths = [p[1] - p[0], p[2] - p[1], p[3] - p[2], p[0] + n - p[3]]
        widest = max(widths)
        out = next(k for k in (3, 0, 1, 2) if widths[k] == widest)
        return p[(out + 1) % 4], *(widths[(out + 1 + k) % 4] for k in range(3))

    def kick(self, first: int, b: int, c: int, d: int) -> Any:
        n = self.n
        at = lambda k: self.tour[(first + k) % n]  # noqa: E731
        cut = [(at(k), at(k + 1)) for k in (0, b, b + c, b + c + d)]
        total = F(0)
        for edge in cut:
            total = F(total + self.distance(*edge))
        for city in [a for a, _ in cut] + [a for _, a in cut]:
            self.push(city)
        if total < 0:
            return F(0)
        middle = [at(1 + k) for k in range(b + c + d)]
        for start, count in ((1, b + c + d), (1, d), (1 + d, c), (1 + d + c, b)):
            self.reverse_and_log((first + start) % n, (first + start + count - 1) % n)
        swapped = middle[b + c :] + middle[b : b + c] + middle[:b]
        assert [at(1 + k) for k in range(b + c + d)] == swapped
        for k in (0, d, d + c, b + c + d):
            total = F(total - self.distance(at(k), at(k + 1)))
        return total

    # -- walks -------------------------------------------------------------------------------------------

    def descend(self) -> None:
        for city in list(self.tour):
            self.push(city)
        self.repair(F(0), True, F(0))
        self.best_length = self.length()
        edge = F(F(self.best_length) / F(self.n))
        self.slack, self.margin = F(self.slack * edge), F(self.margin * edge)
        self.best = list(self.tour)

    def length(self) -> float:
        """In the kernel's order: every lane its cities, then the halves of the warp together."""
        lanes = [0.0] * 32
        for k in range(self.n):
            d = self.distance(self.tour[k], self.tour[(k + 1) % self.n])
            lanes[k % 32] += max(float(d), 0.0)
        while len(lanes) > 1:
            half = len(lanes) // 2
            lanes = [a + b for a, b in zip(lanes[:half], lanes[half:], strict=True)]
        return lanes[0]

    def end_walk(self) -> None:
        gain = 0.0
        if self.behind > 0:
            best, other = np.array(self.best, dtype=np.int32), np.array(self.tour, dtype=np.int32)
            edges = np.zeros((3, self.n))
            for row, tour in enumerate((best, other)):
                edges[row] = [self.distance(a, b) for a, b in zip(tour, np.roll(tour, -1), strict=True)]
            gain = take_better_parts(best, other, edges, np.empty((ROOM, self.n), dtype=np.int32))
            self.tour = best.tolist()
        self.best, self.best_length = list(self.tour), self.length()
        if gain > 0 or self.leads:
            self.agreed = 0
        elif self.behind <= 0 and self.walks > 0:
            self.agreed += 1
        self.walks, self.idle, self.leads, self.behind = self.walks + 1, 0, False, F(0)

    def one_kick(self) -> None:
        restart = self.idle >= self.patience
        gain = F(0)
        self.log.clear()
        if restart:
            self.end_walk()
        for _ in range(self.bridges if restart else 1):
            row = restart or self.draw(16) == 0
            gain = F(gain + self.kick(*(self.in_a_row() if row else self.nearby())))
        allowed = F(self.slack * self.units[self.draw(64)])
        gain = self.repair(gain, restart, F(allowed + self.margin))
        if restart or gain >= -allowed:
            self.behind = F(self.behind - gain)
        else:
            self.undo(0)
        self.idle += 1
        if self.behind <= DRIFT * self.tolerance:
            self.behind = F(self.length() - self.best_length)
        if self.behind <= self.tolerance:
            if self.behind < -self.tolerance:
                self.best, self.leads, self.agreed = list(self.tour), True, 0
                self.best_length = self.length()
            elif self.bridges > 0 and self.walks > 0 and not self.leads:
                self.idle = self.patience
            self.behind = F(0)


def bits(value: float) -> int:
    return int(struct.unpack("i", struct.pack("f", value))[0])
