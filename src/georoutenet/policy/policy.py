"""The policy: coordinates in, `Scores` out, for both encoders, dense or sparse, in bounded memory."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from georoutenet.errors import InputError
from georoutenet.kernels import encoder as fused
from georoutenet.kernels.cpu import dense as dense_cpu
from georoutenet.model.all_pairs import all_pairs
from georoutenet.model.config import PolicyConfig
from georoutenet.model.geometry import Neighborhood, nearest, neighborhood, pair_distances
from georoutenet.model.georoutenet import GeoRouteNet, NodeStates
from georoutenet.model.layers import take
from georoutenet.model.nar4tsp import Nar4Tsp
from georoutenet.model.scores import Scores
from georoutenet.problem.instance import Instance, normalize

STATISTICS = ("frozen", "batch")

# Pairs that the edge tower holds at a time at inference. On a CPU the edge states of a block should stay in
# the cache; on a GPU a block should be large enough to fill the chip. The fused kernels hold two states of a
# pair (256 bytes each) and nothing else.
PAIRS_PER_BLOCK = {"cpu": 2048, "cuda": 1 << 20, "fused": 1 << 22}

# Where gradients are recorded without kernels, attention reads the near pairs' states from those of all
# pairs; else the node tower carries them a second time.
ONE_SET = True

# In `over_candidates` pairs that the network does not score have this logit times one plus their length;
# trained logits reach into the thousands.
UNSCORED = -1e6


class Policy(nn.Module):
    """A static-score policy.

    ``policy(coords)`` with ``coords (B, n, 2)`` in the unit square gives dense scores;
    ``policy(coords, candidates=32)`` the logits of each city's 32 nearest, equal to the dense ones.

    ``compute_dtype`` (say ``torch.bfloat16``) is the precision of the towers' matrix products; coordinates,
    distances, softmaxes, norms and logits stay in float32 or better. Where dense scores are
    computed in bfloat16 on CUDA, the network runs in fused kernels unless ``fused`` is false; ``recompute``
    sets of GeoRouteNet's edge states they do not keep for the backward pass but make again.
    ``statistics`` matters to NAR4TSP alone and only in evaluation mode; in training mode its norms always use
    the batch.
    """

    def __init__(self, config: PolicyConfig | None = None) -> None:
        super().__init__()
        self.config = config or PolicyConfig()
        self.encoder: GeoRouteNet | Nar4Tsp
        self.encoder = (GeoRouteNet if self.config.encoder == "georoutenet" else Nar4Tsp)(self.config)
        self.compute_dtype: torch.dtype | None = None
        self.statistics = "frozen"
        self.pairs_per_block: int | None = None
        self.fused = True
        self.recompute = 0

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
        dtype = self.compute_dtype or self.dtype
        if isinstance(self.encoder, Nar4Tsp) and (self.training or self.statistics == "batch"):
            return self.encoder.from_batch(coords, dtype)
        if self.is_fused():
            if torch.is_grad_enabled():
                return self._fused(coords, dtype, width)
            together = max(1, self._pairs_at_a_time() // coords.shape[1] ** 2)
            parts = [self._fused(part, dtype, width) for part in coords.split(together)]
            return torch.cat([start for start, _ in parts]), torch.cat([logits for _, logits in parts])
        places = self._places(coords)
        if ONE_SET and torch.is_grad_enabled() and isinstance(self.encoder, GeoRouteNet):
            distance = self._distances(places.unsqueeze(2), places.unsqueeze(1))  # (B, n, n)
            return all_pairs(self.encoder, coords, distance, self._near(places, width), dtype)
        if not torch.is_grad_enabled() and dense_cpu.fits(self.encoder, coords, dtype):
            assert isinstance(self.encoder, GeoRouteNet)
            distance = self._distances(places.unsqueeze(2), places.unsqueeze(1))
            return dense_cpu.dense(self.encoder, coords, distance, self._near(places, width))
        states, logits = self._nodes(coords, width), []
        for rows in self._row_blocks(coords, coords.shape[1]):
            distance = self._distances(places[:, rows].unsqueeze(2), places.unsqueeze(1))  # (B, rows, n)
            sources = [source[:, rows].unsqueeze(2) for source in states.sources]
            targets = [target.unsqueeze(1) for target in states.targets]
            logits.append(self.encoder.edges(distance, sources, targets))
        return states.start, torch.cat(logits, 1)

    def is_fused(self) -> bool:
        """Whether dense scores come from the fused kernels."""
        return isinstance(self.encoder, GeoRouteNet) and self._has_kernels()

    def _has_kernels(self) -> bool:
        """Whether kernels take the model as it is set; they read stored weights in float32."""
        dtype = self.compute_dtype or self.dtype
        return self.fused and self.dtype == torch.float32 and fused.fits(self.config, dtype, self.device)

    def compile_around_kernels(self) -> bool:
        """Compile what runs between the fused kernels; false where dense scores do not come from them."""
        if self.is_fused():
            assert isinstance(self.encoder, GeoRouteNet)
            fused.compile_nodes(self.encoder)
        return self.is_fused()

    def _fused(self, coords: Tensor, dtype: torch.dtype, width: int | None) -> tuple[Tensor, Tensor]:
        """`dense` in fused kernels: with the edge states of all pairs if they may be kept, else by rows."""
        assert isinstance(self.encoder, GeoRouteNet)
        use = fused.operations()
        places = self._places(coords)
        blocks = self._row_blocks(coords, coords.shape[1])
        if len(blocks) == 1:
            ahead = fused.prepare(self.encoder, coords, dtype, use)
            distance, near, tables = self._pairs(places, width, use)
            return fused.all_pairs(
                self.encoder, coords, distance, near, dtype, use,
                tables=tables, ahead=ahead, recompute=self.recompute,
            )  # fmt: skip
        states = self._nodes(coords, width)
        logits = []
        for rows in blocks:
            distance = self._distances(places[:, rows].unsqueeze(2), places.unsqueeze(1))
            sources = [source[:, rows] for source in states.sources]
            logits.append(fused.pairs(self.encoder, distance, sources, states.targets, use))
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

    @torch.no_grad()
    def score_many(
        self,
        instances: Sequence[Instance | np.ndarray],
        *,
        candidates: int | None = None,
        batch_size: int = 128,
    ) -> list[Scores]:
        """Scores of instances of any sizes, each as a batch of one, normalized to the unit square first.

        Instances of equal size share a batch; with frozen statistics the result does not depend on that.
        """
        arrays = [
            x.normalized() if isinstance(x, Instance) else normalize(np.asarray(x, np.float64))
            for x in instances
        ]
        scores: list[Scores | None] = [None] * len(arrays)
        sizes: dict[int, list[int]] = {}
        for position, array in enumerate(arrays):
            sizes.setdefault(len(array), []).append(position)
        for positions in sizes.values():
            for first in range(0, len(positions), batch_size):
                group = positions[first : first + batch_size]
                stacked = torch.from_numpy(np.stack([arrays[position] for position in group]))
                batch = self(stacked.to(self.device, self.dtype), candidates)
                for row, position in enumerate(group):
                    scores[position] = batch[row]
        return [s for s in scores if s is not None]

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
        return [slice(first, min(first + rows, n)) for first in range(0, n, rows)]

    def _pairs(
        self, places: Tensor, width: int | None, use: fused.Operations
    ) -> tuple[Tensor, Neighborhood, fused.Tables]:
        """All distances ``(B, n, n)``, the neighborhoods, and what the attention wants to know of them."""
        found = use.near(places, self.config, width)
        if found is not None:
            return found
        near = self._near(places, width)
        return self._distances(places.unsqueeze(2), places.unsqueeze(1)), near, use.tables(near)

    def _pairs_at_a_time(self) -> int:
        kind = "fused" if self.is_fused() else self.device.type
        return self.pairs_per_block or PAIRS_PER_BLOCK.get(kind, PAIRS_PER_BLOCK["cuda"])

    def _places(self, coords: Tensor) -> Tensor:
        """The cities as distances see them: in the unit that the configuration asks for."""
        return coords if self.config.unit == "square" else coords * math.sqrt(coords.shape[1] / 50)

    def _distances(self, a: Tensor, b: Tensor) -> Tensor:
        return self._seen(pair_distances(a, b))

    def _seen(self, distance: Tensor) -> Tensor:
        """The distance as the network sees it: within reach."""
        return distance.clamp(max=self.config.reach) if self.config.reach else distance

    def _near(self, places: Tensor, width: int | None) -> Neighborhood:
        near = neighborhood(places, self.config.neighbors, width)
        return Neighborhood(near.index, near.mask, self._seen(near.distance))

    def _nodes(self, coords: Tensor, width: int | None = None) -> NodeStates:
        near = self._near(self._places(coords), width)
        blocks = self._row_blocks(coords, near.index.shape[-1])
        return self.encoder.nodes(coords, near, self.compute_dtype or self.dtype, blocks)

    def over_candidates(
        self, coords: Tensor, candidates: int, width: int | None = None
    ) -> tuple[Tensor, Tensor]:
        """Start log-probabilities ``(B, n)`` and logits ``(B, n, n)`` of a policy that chooses among the
        unvisited of each city's ``candidates`` nearest, and where none is left goes to the nearest unvisited.

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
        """The node tower's results, each city's nearest ``(B, n, K)``, the places, and the pairs' logits."""
        states, places = self._nodes(coords, width), self._places(coords)
        index, distance = nearest(places, candidates)
        logits = []
        for rows in self._row_blocks(coords, max(1, candidates)):
            sources = [source[:, rows].unsqueeze(2) for source in states.sources]
            targets = [take(target, index[:, rows]) for target in states.targets]
            logits.append(self.encoder.edges(self._seen(distance[:, rows]), sources, targets))
        return states, index, places, torch.cat(logits, 1)

    def _sparse(self, coords: Tensor, candidates: int) -> Scores:
        states, index, places, logits = self._candidates(coords, candidates)

        def pair_logits(b: Tensor, i: Tensor, j: Tensor) -> Tensor:
            with torch.no_grad():
                d = self._distances(places[b, i], places[b, j])
                sources = [source[b, i] for source in states.sources]
                targets = [target[b, j] for target in states.targets]
                return self.encoder.edges(d, sources, targets)

        return Scores(states.start, logits, index, pair_logits)
