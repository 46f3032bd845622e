"""Instances of one size -> first tours by the network: which scores and decoder, in what memory and time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from georoutenet.clock import now
from georoutenet.device import memory_available
from georoutenet.errors import InputError
from georoutenet.problem.instance import Instance
from georoutenet.solver.result import EdgeProbabilities

if TYPE_CHECKING:
    import torch

    from georoutenet.decode import Decoded
    from georoutenet.model.scores import Scores
    from georoutenet.policy.policy import Policy
    from georoutenet.search.path import Ends

DECODERS = ("greedy", "sample", "beam")

DENSE = 300
"""Up to this many cities every pair is scored and the default decoder is a beam; above, candidate lists."""
CANDIDATES = 16
"""Length of the candidate lists of sparse scores."""
NETWORK = 1_000
"""Above this many cities the network is asked only when a decoder is named: it takes longer than it helps."""
PAIRS_IN_VIEWS = {"cpu": 40_000, "cuda": 4_000_000}
"""Default views score at most this many pairs in all, at most four (both twice without search)."""
LENGTH_WEIGHT = 60.0
"""Of the default beam, which also uses dominance: chosen in docs/decoding.md."""
PAIRS_PER_CALL = {"cpu": 16_384, "cuda": 1 << 22}
"""Pairs in one call of the network: so much work is done between two looks at the clock."""
PAIRS_ALONE = 10_000
"""Up to so many pairs a call runs on one thread. Two are a quarter faster while both cores are free, and
several times slower when one is not: they wait for each other a few hundred times."""
LIKELY = 10
"""How many next cities per city a result remembers."""


@dataclass(frozen=True)
class Plan:
    """What the network and the decoder are to do for instances of ``n`` cities."""

    n: int
    decoder: str
    width: int
    """Beams or samples per instance, shared by the views."""
    views: int
    candidates: int | None
    """None: dense scores."""
    device: str
    dominance: bool = False
    """The default beam: dominance and a length weight."""

    @property
    def seconds(self) -> float:
        """What one view of one instance will take, as far as this process can tell."""
        if self.candidates is None:
            return _pace["call"] + _pace["pair"] * self.n**2
        return _pace["call"] + _pace["city"] * self.n

    @property
    def per_call(self) -> int:
        """Views of instances in one call of the network."""
        kind = self.device.split(":")[0]
        pairs = self.n * (self.n if self.candidates is None else self.candidates)
        return max(1, PAIRS_PER_CALL.get(kind, PAIRS_PER_CALL["cpu"]) // pairs)

    def __str__(self) -> str:
        width = "" if self.decoder == "greedy" else f" {self.width}"
        views = "" if self.views == 1 else f", {self.views} views"
        return f"{self.decoder}{width}{views}{', dominance' if self.dominance else ''}"


_pace = {"call": 0.03, "pair": 1e-5, "city": 5e-4}
"""Seconds of the network on this machine: first a guess, then what was measured last."""


def make_plan(
    n: int,
    *,
    decoder: str | None = None,
    beam_width: int | None = None,
    views: int | None = None,
    improve: bool = True,
    device: str = "cpu",
) -> Plan:
    """Fill in what was not asked for.

    The default for small instances is what docs/decoding.md recommends: views, 1,000 beams in all, dominance;
    fewer views where local search follows. ``decoder="beam"`` is the paper's plain beam.
    """
    if decoder is not None and decoder not in DECODERS:
        raise InputError(f"unknown decoder {decoder!r}; allowed: {', '.join(DECODERS)}")
    for name, value in (("beam_width", beam_width), ("views", views)):
        if value is not None and (isinstance(value, bool) or int(value) != value or value < 1):
            raise InputError(f"{name} must be a whole number of at least 1, got {value!r}")
    chosen = decoder or ("beam" if n <= DENSE else "greedy")
    dense = n <= DENSE or chosen == "beam"
    kind = device.split(":")[0]
    if views is None:
        pairs = PAIRS_IN_VIEWS.get(kind, PAIRS_IN_VIEWS["cpu"])
        most, pairs = (4, pairs) if improve else (8, 2 * pairs)
        views = max(1, min(most, pairs // n**2)) if dense and (improve or decoder is None) else 1
    width = beam_width or (1000 if dense else 16)
    dominance = decoder is None and chosen == "beam"
    return Plan(n, chosen, width, views, None if dense else CANDIDATES, device, dominance)


def memory_needed(plan: Plan) -> int:
    """Bytes that scores and decoder take at most at a time, roughly."""
    if plan.candidates is None:
        scores = plan.per_call * 16 * plan.n**2
    else:
        scores = plan.per_call * plan.n * (12_000 + 48 * plan.candidates)
    share = -(-plan.width // plan.views)
    tours = plan.per_call * share * plan.n * (24 if plan.decoder == "beam" else 16)
    return scores + (0 if plan.decoder == "greedy" else tours)


def check_memory(plan: Plan, available: int | None = None) -> None:
    """Refuse what would not fit, and say what would."""
    available = memory_available(plan.device) if available is None else available
    needed = memory_needed(plan)
    if needed <= available:
        return
    message = f"{plan.decoder} over {plan.n:,} cities needs about {_gib(needed)} of memory"
    message += f", and {_gib(available)} are free"
    narrow = replace(plan, width=plan.views)
    if memory_needed(narrow) <= available and plan.decoder != "greedy":
        spare = available - memory_needed(narrow)
        per_width = (needed - memory_needed(narrow)) / max(1, plan.width - plan.views)
        fits = plan.views + int(spare / per_width)
        raise InputError(f"{message}; a width of about {fits:,} would fit")
    fits = int((available / 16) ** 0.5)
    raise InputError(
        f"{message}; about {fits:,} cities would fit. The decoders greedy and sample work on candidate lists "
        f"above {DENSE} cities and take far less"
    )


def load(weights: str | Path, device: str) -> Policy:
    """A policy, kept for the next call; a changed file is read again."""
    from georoutenet.policy.weights import find_weights

    path = find_weights(weights)
    return _load(str(path), path.stat().st_mtime_ns, device)


@lru_cache(maxsize=4)
def _load(path: str, _changed_at: int, device: str) -> Policy:
    from georoutenet.policy.weights import load_policy

    return load_policy(path, device)


@dataclass
class Found:
    """The best tours so far of ``B`` instances of one size."""

    tours: NDArray[np.int64]  # (B, n)
    lengths: NDArray[np.float64]  # (B,)
    edges: list[EdgeProbabilities] = field(default_factory=list)
    views: int = 0
    network: float = 0.0
    decode: float = 0.0
    interrupted: bool = False


def neural_tours(
    policy: Policy,
    instances: Sequence[Instance],
    plan: Plan,
    ends: Ends,
    *,
    seed: int = 0,
    remaining: Callable[[], float] = lambda: float("inf"),
) -> Found:
    """Score and decode view by view; the cheapest tour of each instance under its own rule.

    The first view is always finished; another one is begun while ``remaining()`` seconds suffice for it.
    Ctrl-C after the first view ends the work with what there is.
    """
    import torch

    from georoutenet.decode.views import shares

    count, n = len(instances), plan.n
    found = Found(np.tile(np.arange(n), (count, 1)), np.full(count, np.inf))
    widths = [1] * plan.views if plan.decoder == "greedy" else shares(plan.width, plan.views)
    try:
        for view, width in enumerate(widths):
            if view and (found.network + found.decode) / view > remaining():
                break
            for low in range(0, count, plan.per_call):
                chosen = range(low, min(count, low + plan.per_call))
                with torch.no_grad():
                    _decode_view(policy, instances, chosen, plan, ends, view, width, seed, found)
            found.views = view + 1
    except KeyboardInterrupt:
        if not found.views:
            raise
        found.interrupted = True
    _learn(plan, found, count)
    return found


@contextmanager
def _threads_for(pairs: int) -> Iterator[None]:
    """One thread for little work."""
    import torch

    usual = torch.get_num_threads()
    torch.set_num_threads(1 if pairs <= PAIRS_ALONE else usual)
    try:
        yield
    finally:
        torch.set_num_threads(usual)


def _decode_view(
    policy: Policy,
    instances: Sequence[Instance],
    chosen: range,
    plan: Plan,
    ends: Ends,
    view: int,
    width: int,
    seed: int,
    found: Found,
) -> None:
    """One call of the network and the decoder; keeps what is better."""
    import torch

    from georoutenet.decode.views import make_views

    began = now()
    own = [instances[k] for k in chosen]
    coordinates = np.stack([instance.normalized() for instance in own])
    seen = make_views(coordinates, view + 1, seed)[:, view].float()
    with _threads_for(len(own) * plan.n * (plan.candidates or plan.n)):
        scores = policy(seen.to(plan.device), candidates=plan.candidates)
    if view == 0:
        found.edges.extend(likely_edges(scores))
    if plan.device.startswith("cuda"):
        torch.cuda.synchronize()
    scored = now()
    decoded = _decode(scores, own, torch.from_numpy(coordinates), plan, ends, width, seed + view)
    assert decoded.lengths is not None
    tours, lengths = decoded.tours[:, 0].cpu().numpy(), decoded.lengths[:, 0].cpu().numpy()
    for row, k in enumerate(chosen):
        if lengths[row] < found.lengths[k]:
            found.tours[k], found.lengths[k] = tours[row], lengths[row]
    found.network += scored - began
    found.decode += now() - scored


def _decode(
    scores: Scores,
    instances: list[Instance],
    coordinates: torch.Tensor,
    plan: Plan,
    ends: Ends,
    width: int,
    seed: int,
) -> Decoded:
    from georoutenet.decode import beam, greedy, sample
    from georoutenet.decode.beam_task import cheapest
    from georoutenet.decode.costs import as_costs

    fixed: dict[str, Any] = {"start": ends.start, "end": ends.end, "closed": ends.closed}
    if plan.decoder == "beam":
        weight = LENGTH_WEIGHT if plan.dominance else 0.0
        return beam(
            scores, width, instances=instances, dominance=plan.dominance, length_weight=weight, **fixed
        )
    where = coordinates.to(scores.start.device)
    if plan.decoder == "greedy":
        drawn = greedy(scores, coordinates=where, log_probabilities=False, **fixed)
    else:
        drawn = sample(scores, width, seed=seed, coordinates=where, log_probabilities=False, **fixed)
    costs = as_costs(len(instances), plan.n, scores.start.device, instances=instances, closed=ends.closed)
    return cheapest(drawn.tours, None, costs, 1)


def likely_edges(scores: Scores, count: int = LIKELY) -> list[EdgeProbabilities]:
    """The ``count`` most probable next cities of each city: a softmax over all others, or the candidates."""
    import torch

    logits, neighbors = scores.logits.float(), scores.neighbors
    if neighbors is None:
        logits = logits.clone()
        logits.diagonal(dim1=1, dim2=2).fill_(-torch.inf)
    kept = min(count, scores.n - 1, logits.shape[2])
    probabilities, index = torch.softmax(logits, dim=2).topk(kept, dim=2)
    cities = index if neighbors is None else neighbors.gather(2, index)
    return [
        EdgeProbabilities(c.cpu().numpy().astype(np.int32), p.cpu().numpy())
        for c, p in zip(cities, probabilities, strict=True)
    ]


def score_edges(instance: Instance, weights: str | Path | Policy, device: str) -> EdgeProbabilities:
    """What the network says about one instance, without decoding."""
    import torch

    from georoutenet.device import choose_device

    place = str(choose_device(device))
    plan = make_plan(instance.n, decoder="greedy", device=place)
    check_memory(plan)
    policy = load(weights, place) if isinstance(weights, (str, Path)) else weights
    cities = torch.from_numpy(instance.normalized()).float()[None].to(policy.device)
    with torch.no_grad():
        return likely_edges(policy(cities, candidates=plan.candidates))[0]


def _learn(plan: Plan, found: Found, count: int) -> None:
    """Remember what a view cost on this machine, and a little more to be on the safe side."""
    if not found.views:
        return
    seconds = (found.network + found.decode) / (found.views * count)
    size, name = (plan.n**2, "pair") if plan.candidates is None else (plan.n, "city")
    if size >= (10_000 if name == "pair" else 500):  # smaller calls are mostly overhead
        _pace[name] = 1.2 * seconds / size


def _gib(size: float) -> str:
    return f"{size / 2**30:.1f} GiB" if size >= 2**30 else f"{size / 2**20:.0f} MiB"
