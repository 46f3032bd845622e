"""Instances of one size -> first tours by the network: which decoding, in what memory and time."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from georoutenet.clock import OutOfTime, looking, now
from georoutenet.decode.decoding import RECOMMENDED, Decoding
from georoutenet.device import choose_device, memory_available
from georoutenet.errors import InputError, warn
from georoutenet.io.packaged import find_weights
from georoutenet.problem.instance import Instance
from georoutenet.search.path import Ends
from georoutenet.solver.compiling import compiling
from georoutenet.solver.edges import EdgeMarginals, EdgeProbabilities, count_edges, likely_edges
from georoutenet.solver.options import SolveOptions
from georoutenet.unbroken import import_whole

if TYPE_CHECKING:
    from torch import Tensor

    from georoutenet.model.scores import Scores
    from georoutenet.policy.policy import Policy
DENSE = 300
"""Up to this many cities every pair is scored and the default decoder is a beam; above, candidate lists."""
CANDIDATES = 16
"""Length of the candidate lists of sparse scores, unless a beam goes over them."""
OVER_CANDIDATES = replace(RECOMMENDED, length_weight=120.0, candidates=32)
"""What is recommended over candidate lists: edges are shorter, so lengths weigh more."""
WIDTH_OF_SPARSE = 16
"""Default number of samples over candidate lists."""
NETWORK = 1_000
"""Above this many cities the network is asked only when a decoder is named: it takes longer than it helps."""
PAIRS_IN_VIEWS = {"cpu": 40_000, "cuda": 4_000_000}
"""Default views score at most this many pairs in all, at most four (both twice without search)."""
PAIRS_PER_CALL = {"cpu": 16_384, "cuda": 1 << 24}
"""Pairs in one call of the network: so much work is done between two looks at the clock."""
PAIRS_ALONE = 10_000
"""Pairs, at most, of a call on one thread. Two are a quarter faster while both cores are free, and several
times slower when one is not: they wait for each other a few hundred times."""
SECONDS = {"call": 0.01, "pair": 5.5e-6, "city": 2.5e-4, "beams": 2.5e-4}
"""What scoring and decoding one view takes on a CPU core: for each call, and for each pair of dense scores or
each city of sparse ones, more with beams. Measured from 20 to 3,000 cities; a GPU is faster."""
LONG = 90.0
"""Seconds of decoding one instance from which on they are announced."""
DRAWN = 100
"""Tours that are drawn in each view for the marginals of the edges."""
MOST_VIEWS_DRAWN = 8
PATIENCE = 2.0
"""Seconds that a picture may wait for the network, about."""


def choose_decoding(n: int, options: SolveOptions, device: str = "cpu") -> Decoding:
    """What the caller asked for, the rest filled in for ``n`` cities.

    The default is what docs/decoding.md recommends: views, 1,000 beams in all, dominance, tours merged; to
    300 cities over all pairs, with fewer views where local search follows, and to 1,000 without local search
    over candidate lists. ``decoder="beam"`` is the paper's plain beam.
    """
    chosen = _choose_decoder(n, options, device)
    return replace(chosen, precision=_choose_precision(chosen.precision, options, device))


def _choose_precision(asked: str, options: SolveOptions, device: str) -> str:
    """bfloat16 on GPUs that have it, unless the caller says otherwise, in words or by a policy of his own."""
    if options.precision != "auto":
        return options.precision
    if asked != "float32" or not isinstance(options.weights, (str, Path)) or not device.startswith("cuda"):
        return asked
    import torch

    from georoutenet.kernels.choose import has_bf16

    return "bfloat16" if torch.cuda.is_available() and has_bf16(torch.device(device)) else asked


def _choose_decoder(n: int, options: SolveOptions, device: str) -> Decoding:
    asked = options.decoding
    if asked is not None:
        sparse = n > DENSE and asked.decoder != "beam" and asked.candidates is None
        return replace(asked, candidates=CANDIDATES) if sparse else asked
    beam = n <= DENSE or (n <= NETWORK and not options.improve)
    decoder = str(options.decoder or ("beam" if beam else "greedy"))
    recommended = options.decoder is None and decoder == "beam"
    dense = n <= DENSE or (decoder == "beam" and not recommended)
    views = options.views
    if views is None:
        pairs = _by_kind(PAIRS_IN_VIEWS, device)
        most, pairs = (4, pairs) if options.improve else (8, 2 * pairs)
        several = dense and (options.improve or options.decoder is None)
        views = max(1, min(most, pairs // n**2)) if several else RECOMMENDED.views if recommended else 1
    narrow = not dense and not recommended
    return replace(
        (RECOMMENDED if dense else OVER_CANDIDATES) if recommended else Decoding(decoder),
        width=options.beam_width or (WIDTH_OF_SPARSE if narrow else RECOMMENDED.width),
        views=views,
        candidates=None if dense else OVER_CANDIDATES.candidates if recommended else CANDIDATES,
    )


def _by_kind(table: dict[str, int], device: str) -> int:
    return table.get(device.split(":")[0], table["cpu"])


def seconds_per_view(n: int, decoding: Decoding) -> float:
    """What one view of one instance is estimated to take; never what earlier calls took."""
    if decoding.candidates is None:
        return SECONDS["call"] + SECONDS["pair"] * n**2
    return SECONDS["call"] + n * (SECONDS["city"] + SECONDS["beams"] * (decoding.decoder == "beam"))


def views_per_call(n: int, decoding: Decoding, device: str) -> int:
    """Views of instances in one call of the network."""
    return max(1, _by_kind(PAIRS_PER_CALL, device) // (n * (decoding.candidates or n)))


def memory_needed(n: int, decoding: Decoding, device: str) -> int:
    """Bytes that scores and decoder take at most at a time, roughly."""
    per_call = views_per_call(n, decoding, device)
    if decoding.candidates is None:
        scores = per_call * 16 * n**2
    else:
        scores = per_call * n * (12_000 + 48 * decoding.candidates)
    if decoding.decoder == "greedy":
        return scores
    share = -(-decoding.width // (decoding.finalists or decoding.views))
    return scores + per_call * share * n * (24 if decoding.decoder == "beam" else 16)


def check_memory(n: int, decoding: Decoding, device: str, available: int | None = None) -> None:
    """Refuse what would not fit, and say what would."""
    available = memory_available(device) if available is None else available
    needed = memory_needed(n, decoding, device)
    if needed <= available:
        return
    message = f"{decoding.decoder} over {n:,} cities needs about {_gib(needed)} of memory"
    message += f", and {_gib(available)} are free"
    narrow = replace(decoding, width=decoding.views, finalists=0)
    least = memory_needed(n, narrow, device)
    if least <= available and decoding.decoder != "greedy":
        per_width = (needed - least) / max(1, decoding.width - narrow.width)
        fits = narrow.width + int((available - least) / per_width)
        raise InputError(f"{message}; a width of about {fits:,} would fit")
    fits = int((available / 16) ** 0.5)
    raise InputError(
        f"{message}; about {fits:,} cities would fit. The decoders greedy and sample work on candidate lists "
        f"above {DENSE} cities and take far less"
    )


def warn_of_long(n: int, decoding: Decoding, device: str) -> None:
    """Say before minutes of decoding what they come from; a GPU takes far less than is estimated here."""
    seconds = decoding.views * seconds_per_view(n, decoding)
    if seconds > LONG and device.startswith("cpu"):
        warn(
            f"{decoding.views:,} views of {n:,} cities take about {seconds / 60:,.0f} minutes on a CPU; "
            "fewer views take less, and max_seconds ends them"
        )


def load(weights: str | Path, device: str) -> Policy:
    """A policy, kept for the next call; a changed file is read again."""
    path = find_weights(weights)
    return _load(str(path), path.stat().st_mtime_ns, device)


@lru_cache(maxsize=4)
def _load(path: str, _changed_at: int, device: str) -> Policy:
    import_whole("georoutenet.policy.weights")
    from georoutenet.policy.weights import load_policy

    return load_policy(path, device)


@dataclass
class Found:
    """The best tours of ``B`` instances of one size, and what they took."""

    tours: NDArray[np.int64]  # (B, n)
    decoding: Decoding
    """What there was time for."""
    complete: bool
    interrupted: bool
    network: float
    decode: float
    edges: list[EdgeProbabilities] = field(default_factory=list)


def neural_tours(
    policy: Policy,
    instances: Sequence[Instance],
    decoding: Decoding,
    ends: Ends,
    *,
    seed: int = 0,
    remaining: Callable[[], float] = lambda: float("inf"),
) -> Found:
    """Score and decode view by view; the cheapest tour of each instance under its own rule.

    Another view is begun while ``remaining()`` seconds suffice for it: see ``decode_views``. A call of the
    network ends with ``OutOfTime`` where none are left.
    """
    import_whole("georoutenet.decode.views")
    from georoutenet.decode.views import decode_views

    device, edges, network = str(policy.device), list[EdgeProbabilities](), 0.0

    def watch() -> None:
        if remaining() < 0:
            raise OutOfTime

    def score(points: Tensor) -> Scores:
        nonlocal network
        began = now()
        with looking(watch):
            scores = _score(policy, points, decoding)
        if len(edges) < len(instances):  # the first round is of the instances as they are
            edges.extend(likely_edges(scores))
        network += now() - began
        return scores

    began = now()
    found = decode_views(
        score,
        instances,
        decoding,
        start=ends.start,
        end=ends.end,
        closed=ends.closed,
        seed=seed,
        device=device,
        batch=views_per_call(ends.n, decoding, device),
        together=1,
        remaining=remaining,
    )
    tours = found.best().cpu().numpy()
    return Found(
        tours,
        decoding if found.complete else replace(decoding, views=found.views, finalists=0),
        found.complete,
        found.interrupted,
        network,
        now() - began - network,
        edges,
    )


def _score(policy: Policy, points: Tensor, decoding: Decoding) -> Scores:
    """One call of the network, finished when it returns."""
    import torch

    pairs = len(points) * points.shape[1] * (decoding.candidates or points.shape[1])
    with _threads.use(pairs):
        scores = in_precision(policy, decoding.precision)(points, candidates=decoding.candidates)
    if points.device.type == "cuda":
        torch.cuda.synchronize(points.device)
    return scores


def in_precision(policy: Policy, precision: str) -> Policy:
    """The policy with products in bfloat16, on the same weights; for float32, the default, as it is.

    The policy itself is not touched: other threads may be asking it.
    """
    if precision != "bfloat16":
        return policy
    import torch

    twin = copy(policy)
    twin.compute_dtype = torch.bfloat16
    return twin


class _Threads:
    """PyTorch's threads while some calls take one: its number is the whole process's, and threads that begin
    meanwhile take it over, so the usual one is kept for all who are inside."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.lock, self.inside, self.usual = threading.Lock(), 0, 0

    @contextmanager
    def use(self, pairs: int) -> Iterator[None]:
        """One thread for little work, the usual number for more."""
        import torch

        with self.lock:
            if not self.inside:
                self.usual = torch.get_num_threads()
            self.inside += 1
            torch.set_num_threads(1 if pairs <= PAIRS_ALONE else self.usual)
        try:
            yield
        finally:
            with self.lock:
                self.inside -= 1
                torch.set_num_threads(self.usual)


_threads = _Threads()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_threads.reset)  # nobody who was inside is there


def edge_marginals(
    instance: Instance,
    weights: str | Path | Policy,
    device: str = "auto",
    ends: Ends | None = None,
    *,
    seconds: float = PATIENCE,
) -> EdgeMarginals:
    """Which edges the network's own tours take: it draws some in each of a few views of the instance.

    There are as many views, eight at most, as are estimated to be scored in ``seconds`` on a CPU core.
    """
    import_whole("georoutenet.decode.views")
    from georoutenet.decode.views import decode_views

    n = instance.n
    if n < 2:
        return EdgeMarginals(np.zeros((0, 2), dtype=np.int64), np.zeros(0), np.ones(n))
    policy = load(weights, str(choose_device(device))) if isinstance(weights, (str, Path)) else weights
    place = str(policy.device)
    usual = choose_decoding(n, SolveOptions(decoder="sample"), place)
    views = max(1, min(MOST_VIEWS_DRAWN, int(seconds / seconds_per_view(n, usual))))
    decoding = replace(usual, width=DRAWN * views, views=views)
    check_memory(n, decoding, place)
    ends = ends if ends is not None and ends.is_path else Ends(n)  # a round trip may begin anywhere
    starts = list[NDArray[np.float64]]()

    def score(points: Tensor) -> Scores:
        scores = _score(policy, points, decoding)
        starts.extend(scores.start.double().exp().cpu().numpy())
        return scores

    with compiling(None):
        tours = decode_views(
            score,
            [instance],
            decoding,
            start=ends.start,
            end=ends.end,
            closed=ends.closed,
            keep=decoding.width,
            device=place,
            batch=views_per_call(n, decoding, place),
        ).tours[0]
    edges, probabilities = count_edges(tours.cpu().numpy(), closed=ends.closed)
    return EdgeMarginals(edges, probabilities, np.mean(starts, axis=0))


def _gib(size: float) -> str:
    return f"{size / 2**30:.1f} GiB" if size >= 2**30 else f"{size / 2**20:.0f} MiB"
