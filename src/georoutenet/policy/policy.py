"""The policy: coordinates in, `Scores` out, for both encoders, dense or sparse, in bounded memory."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from typing import cast

import torch
from torch import Tensor, nn

from georoutenet.clock import look
from georoutenet.errors import InputError
from georoutenet.kernels import encoder as in_kernels
from georoutenet.kernels.choose import CUDA, Case, choose
from georoutenet.kernels.cpu import dense as cpu_dense
from georoutenet.kernels.cuda.neighborhood_attention import SLOTS
from georoutenet.kernels.cuda.node_weights import table_of
from georoutenet.model.all_pairs import all_pairs
from georoutenet.model.config import PolicyConfig
from georoutenet.model.geometry import Neighborhood, around, neighborhood, pair_distances
from georoutenet.model.georoutenet import GeoRouteNet, NodeStates
from georoutenet.model.layers import take
from georoutenet.model.nar4tsp import Nar4Tsp
from georoutenet.model.scores import Scores
from georoutenet.policy.recorded import replayed

STATISTICS = ("frozen", "batch")

if hasattr(os, "register_at_fork"):
    # The threads of PyTorch's OpenMP do not survive a fork, and a child that waits for them hangs for ever.
    os.register_at_fork(after_in_child=lambda: torch.set_num_threads(1))

# Pairs that the edge tower holds at a time at inference. On a CPU the edge states of a block should stay in
# the cache; on a GPU a block should be large enough to fill the chip. The CUDA kernels hold two states of a
# pair (256 bytes each) and nothing else.
PAIRS_PER_BLOCK = {"cpu": 2048, "cuda": 1 << 20, "kernels": 1 << 22}

# Pairs of neighbors whose edge states the node tower holds at a time at inference, 512 bytes each in float32.
# Cities at one place all tie, so that a neighborhood may be most of an instance.
NEIGHBORS_AT_A_TIME = 1 << 21

# In `over_candidates` pairs that the network does not score have this logit times one plus their length;
# trained logits reach into the thousands.
UNSCORED = -1e6


def _joined(parts: Sequence[NodeStates]) -> NodeStates:
    return NodeStates(
        torch.cat([part.start for part in parts]),
        [torch.cat(layer) for layer in zip(*(part.sources for part in parts), strict=True)],
        [torch.cat(layer) for layer in zip(*(part.targets for part in parts), strict=True)],
    )


class _Pieces(list[slice]):
    """Ranges of rows; each pass over them looks at the clock before each."""

    def __iter__(self) -> Iterator[slice]:
        for piece in super().__iter__():
            look()
            yield piece


class Policy(nn.Module):
    """A static-score policy.

    ``policy(coords)`` with ``coords (B, n, 2)`` in the unit square gives dense scores;
    ``policy(coords, candidates=32)`` the logits of 32 cities around each (`around`), equal to the dense ones.

    ``compute_dtype`` (say ``torch.bfloat16``) is the precision of the towers' matrix products; coordinates,
    distances, softmaxes, norms and logits stay in float32 or better. Which form of the network runs is up to
    `georoutenet.kernels.choose`; without ``fused`` none in CUDA kernels, and none of those in ``avoid``.
    ``recompute`` is how many sets of GeoRouteNet's edge states these kernels recompute in the backward pass
    instead of storing them. ``statistics`` matters to NAR4TSP alone and only in evaluation mode; in training
    mode its norms always use the batch.
    """

    def __init__(
        self,
        config: PolicyConfig | None = None,
        *,
        compute_dtype: torch.dtype | None = None,
        statistics: str = "frozen",
        pairs_per_block: int | None = None,
        fused: bool = True,
        avoid: tuple[str, ...] = (),
        recompute: int = 0,
    ) -> None:
        super().__init__()
        self.config = config or PolicyConfig()
        self.encoder: GeoRouteNet | Nar4Tsp
        self.encoder = (GeoRouteNet if self.config.encoder == "georoutenet" else Nar4Tsp)(self.config)
        self.compute_dtype = compute_dtype
        self.statistics = statistics
        self.pairs_per_block = pairs_per_block
        self.fused, self.avoid, self.recompute = fused, avoid, recompute
        self.compiled = False

    @property
    def dtype(self) -> torch.dtype:
        return next(self.parameters()).dtype

    @property
    def device(self) -> torch.device:
        return next(self.parameters()).device

    def parameter_count(self) -> int:
        return sum(parameter.numel() for parameter in self.parameters())

    def forward(self, coords: Tensor, candidates: int | None = None) -> Scores:
        if self.statistics not in STATISTICS:
            raise InputError(f"unknown statistics {self.statistics!r}; allowed: {', '.join(STATISTICS)}")
        coords = self._checked(coords)
        if isinstance(self.encoder, Nar4Tsp):
            if self.training or self.statistics == "batch":
                if candidates is not None:
                    raise InputError("sparse scores need frozen statistics: batch norms here read all pairs")
                return Scores(*self.dense(coords))
            self.encoder.check_frozen()
        if candidates is None:
            return Scores(*self.dense(coords))
        if candidates < 1:
            raise InputError(f"candidates must be at least 1, got {candidates}")
        return self._sparse(coords, min(candidates, coords.shape[1] - 1))

    def dense(self, coords: Tensor, width: int | None = None) -> tuple[Tensor, Tensor]:
        """Start log-probabilities ``(B, n)`` and all edge logits ``(B, n, n)``, with gradients if enabled.

        ``width`` fixes the padded width of the neighborhoods so that shapes are static (see `neighborhood`).
        """
        if isinstance(self.encoder, Nar4Tsp) and (self.training or self.statistics == "batch"):
            return self.encoder.from_batch(coords, self.compute_dtype or self.dtype)
        if width is None and not torch.is_grad_enabled():
            found = self._without_ties(coords)
            if found is not None:
                return found
        # Of a fixed width, CUDA kernels find the neighborhoods themselves; of any, they choose the form.
        near = self._near(self._scaled(coords)) if width is None else None
        form = self.form(coords, near.index.shape[2] if near is not None else width)
        if form in CUDA:
            return self._in_kernels(coords, width, near, hopper=form == "cuda hopper")
        if near is None:
            near = self._near(self._scaled(coords), width)
        if form == "blocks of rows":
            return self._by_rows(coords, near)
        assert isinstance(self.encoder, GeoRouteNet)
        distance = self._all_distances(coords)
        if form == "cpu dense":
            return cpu_dense.dense(self.encoder, coords, distance, near)
        return all_pairs(self.encoder, coords, distance, near, self.compute_dtype or self.dtype)

    def form(self, coords: Tensor, width: int | None = None) -> str:
        """The form in which dense scores of these instances run, with neighborhoods of this width."""
        return choose(self._case(len(coords), coords.shape[1], width, gradients=torch.is_grad_enabled()))

    def is_fused(self) -> bool:
        """Whether the network trains in CUDA kernels."""
        return choose(self._case(1, 2, None, gradients=True)) in CUDA

    def _case(self, batch: int, n: int, width: int | None, *, gradients: bool) -> Case:
        return Case(
            config=self.config,
            device=self.device,
            stored=self.dtype,
            compute=self.compute_dtype or self.dtype,
            gradients=gradients,
            batch=batch,
            n=n,
            width=min(n, self.config.neighbors + 1 if width is None else width),
            avoid=self.avoid if self.fused else (*self.avoid, *CUDA),
        )

    def compile_around_kernels(self) -> bool:
        """Compile what runs between the CUDA kernels; false where the network does not train in them."""
        self.compiled = self.is_fused()
        return self.compiled

    def _without_ties(self, coords: Tensor) -> tuple[Tensor, Tensor] | None:
        """`dense` in CUDA kernels that find the neighborhoods, too; None where they cannot run, or a city has
        so many equally near ones that these may not do."""
        n, width = coords.shape[1], self.config.neighbors + 2
        form = self.form(coords, width)
        if form not in CUDA or not 2 <= n <= in_kernels.CITIES or n * n > self._pairs_at_a_time():
            return None
        hopper, encoder = form == "cuda hopper", cast("GeoRouteNet", self.encoder)

        def run(some: Tensor) -> tuple[Tensor, ...]:
            scaled = self._scaled(some)
            pairs = in_kernels.find_pairs(encoder, scaled, width, None)
            scores = in_kernels.all_pairs(encoder, some, scaled, pairs=pairs, hopper=hopper)
            return *scores, pairs.are_cut()

        parts = [
            replayed(encoder, run, some, hopper, held=lambda: table_of(encoder))
            for some in coords.chunk(self._chunks(coords))
        ]
        start, logits, cut = zip(*parts, strict=True)
        if bool(torch.stack(cut).any()):
            return None
        return (start[0], logits[0]) if len(parts) == 1 else (torch.cat(start), torch.cat(logits))

    def _chunks(self, coords: Tensor) -> int:
        """Into how many parts of about one size a batch is cut, so that none has too many pairs."""
        batch, n, _ = coords.shape
        return -(-batch // max(1, self._pairs_at_a_time() // n**2))

    def _in_kernels(
        self, coords: Tensor, width: int | None, near: Neighborhood | None, *, hopper: bool
    ) -> tuple[Tensor, Tensor]:
        """`dense` in CUDA kernels: a few instances at a time if no gradients are recorded. Where the edge
        states of all pairs may not be kept, or neighborhoods are too wide for the kernels, by rows."""
        assert isinstance(self.encoder, GeoRouteNet)
        batch, n, _ = coords.shape
        scaled, widest = self._scaled(coords), width if near is None else near.index.shape[2]
        together = batch if torch.is_grad_enabled() else -(-batch // self._chunks(coords))
        by_rows = len(self._row_blocks(coords[:together], n)) > 1 or min(n, widest or n) > SLOTS
        if by_rows and near is None:
            near = self._near(scaled, width)
        parts = []
        for first in range(0, batch, together):
            some = slice(first, first + together)
            own = near and Neighborhood(near.index[some], near.mask[some], near.distance[some])
            if by_rows and own:
                parts.append(self._by_rows(coords[some], own, hopper=hopper))
                continue
            parts.append(
                in_kernels.all_pairs(
                    self.encoder, coords[some], scaled[some], width, near=own, hopper=hopper,
                    compiled=self.compiled, recompute=self.recompute,
                )
            )  # fmt: skip
        if len(parts) == 1:
            return parts[0]
        return torch.cat([start for start, _ in parts]), torch.cat([logits for _, logits in parts])

    def _by_rows(
        self, coords: Tensor, near: Neighborhood, *, hopper: bool | None = None
    ) -> tuple[Tensor, Tensor]:
        """`dense` by the two towers, a block of sources at a time; the edge tower in CUDA kernels if it is
        said which build."""
        states, scaled, logits = self._nodes(coords, near), self._scaled(coords), []
        for rows in self._row_blocks(coords, coords.shape[1]):
            distance = self._distances(scaled[:, rows].unsqueeze(2), scaled.unsqueeze(1))  # (B, rows, n)
            sources = [source[:, rows] for source in states.sources]
            if hopper is not None:
                assert isinstance(self.encoder, GeoRouteNet)
                found = in_kernels.edge_logits(self.encoder, distance, sources, states.targets, hopper=hopper)
            else:
                sources = [source.unsqueeze(2) for source in sources]
                found = self.encoder.edges(distance, sources, [x.unsqueeze(1) for x in states.targets])
            logits.append(found)
        return states.start, torch.cat(logits, 1)

    @torch.no_grad()
    def collect_statistics(self, coords: Tensor) -> None:
        """Freeze NAR4TSP's norms at the statistics of this batch of instances; GeoRouteNet has none."""
        if isinstance(self.encoder, Nar4Tsp):
            coords = self._checked(coords)
            if len(coords) < 2:
                raise InputError("statistics need at least two instances")
            self.encoder.from_batch(coords, self.dtype, collect=True)
            last = self.encoder.layers[
                -1
            ].start_norm  # never used, but a weights file holds finite numbers only
            last.mean.zero_()
            last.variance.fill_(1)

    def _checked(self, coords: Tensor) -> Tensor:
        if coords.ndim != 3 or coords.shape[-1] != 2 or 0 in coords.shape or not coords.is_floating_point():
            raise InputError(
                f"coords must be floating point of shape (B, n, 2) with B, n >= 1, got {coords.dtype} "
                f"{tuple(coords.shape)}"
            )
        if not torch.is_grad_enabled() and not bool(torch.isfinite(coords).all()):
            raise InputError("coords must be finite")
        return coords.to(self.device, self.dtype)

    def _row_blocks(self, coords: Tensor, pairs_per_row: int) -> list[slice]:
        """Ranges of source cities to work on at a time; all of them when gradients are recorded."""
        batch, n, _ = coords.shape
        if torch.is_grad_enabled():
            return [slice(0, n)]
        rows = max(1, self._pairs_at_a_time() // (batch * pairs_per_row))
        return _Pieces(slice(first, min(first + rows, n)) for first in range(0, n, rows))

    def _pairs_at_a_time(self) -> int:
        kind = "kernels" if self.is_fused() else self.device.type
        return self.pairs_per_block or PAIRS_PER_BLOCK.get(kind, PAIRS_PER_BLOCK["cuda"])

    def _scaled(self, coords: Tensor) -> Tensor:
        """The coordinates in the unit of the distances."""
        return coords if self.config.unit == "square" else coords * math.sqrt(coords.shape[1] / 50)

    def _all_distances(self, coords: Tensor) -> Tensor:
        scaled = self._scaled(coords)
        return self._distances(scaled.unsqueeze(2), scaled.unsqueeze(1))  # (B, n, n)

    def _distances(self, a: Tensor, b: Tensor) -> Tensor:
        return self._seen(pair_distances(a, b))

    def _seen(self, distance: Tensor) -> Tensor:
        """The distance as the network sees it: within reach."""
        return distance.clamp(max=self.config.reach) if self.config.reach else distance

    def _near(self, scaled: Tensor, width: int | None = None) -> Neighborhood:
        near = neighborhood(scaled, self.config.neighbors, width)
        return Neighborhood(near.index, near.mask, self._seen(near.distance))

    def _nodes(self, coords: Tensor, near: Neighborhood) -> NodeStates:
        batch, n, width = near.index.shape
        together = max(1, NEIGHBORS_AT_A_TIME // (n * width))
        if together < batch and not torch.is_grad_enabled():
            return _joined([self._nodes_of(coords, near, k, k + together) for k in range(0, batch, together)])
        blocks = self._row_blocks(coords, near.index.shape[-1])
        return self.encoder.nodes(coords, near, self.compute_dtype or self.dtype, blocks)

    def _nodes_of(self, coords: Tensor, near: Neighborhood, first: int, last: int) -> NodeStates:
        """Of some instances of the batch, whose neighborhoods may all be narrower."""
        width = int(near.mask[first:last].sum(-1).amax())
        some = (each[first:last, :, :width] for each in (near.index, near.mask, near.distance))
        return self._nodes(coords[first:last], Neighborhood(*some))

    def over_candidates(
        self, coords: Tensor, candidates: int, width: int | None = None
    ) -> tuple[Tensor, Tensor]:
        """Start log-probabilities ``(B, n)`` and logits ``(B, n, n)`` of a policy that chooses among the
        unvisited of ``candidates`` around each city, and where none is left goes to the nearest unvisited.

        With gradients if enabled; the network's work grows with n. Pairs that it does not score have logits
        far below all others, the lower the longer, so the dense decoders and `replay` follow this policy.
        """
        states, index, _, scored = self._candidates(coords, min(candidates, coords.shape[1] - 1), width)
        distance = pair_distances(coords.unsqueeze(2), coords.unsqueeze(1))
        beyond = UNSCORED * (1 + distance.to(scored.dtype))
        return states.start, beyond.scatter(2, index, scored)

    def _candidates(
        self, coords: Tensor, candidates: int, width: int | None = None
    ) -> tuple[NodeStates, Tensor, Tensor, Tensor]:
        """The node tower's results, those around each city ``(B, n, K)``, the scaled coordinates, and the
        pairs' logits."""
        scaled = self._scaled(coords)
        states = self._nodes(coords, self._near(scaled, width))
        index, distance = around(scaled, candidates)
        logits = []
        for rows in self._row_blocks(coords, max(1, candidates)):
            sources = [source[:, rows].unsqueeze(2) for source in states.sources]
            targets = [take(target, index[:, rows]) for target in states.targets]
            logits.append(self.encoder.edges(self._seen(distance[:, rows]), sources, targets))
        return states, index, scaled, torch.cat(logits, 1)

    def _sparse(self, coords: Tensor, candidates: int) -> Scores:
        states, index, scaled, logits = self._candidates(coords, candidates)

        def pair_logits(b: Tensor, i: Tensor, j: Tensor) -> Tensor:
            with torch.no_grad():
                d = self._distances(scaled[b, i], scaled[b, j])
                sources = [source[b, i] for source in states.sources]
                targets = [target[b, j] for target in states.targets]
                return self.encoder.edges(d, sources, targets)

        return Scores(states.start, logits, index, pair_logits)
