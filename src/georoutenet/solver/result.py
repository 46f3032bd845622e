"""What ``solve`` hands back."""

from __future__ import annotations

import io
import json
import math
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from georoutenet.errors import InputError, path_name
from georoutenet.io.atomic import atomic_write
from georoutenet.io.export import visits
from georoutenet.io.files import write_tour
from georoutenet.io.frame import to_frame
from georoutenet.problem.instance import Instance
from georoutenet.problem.sketch import sketch
from georoutenet.problem.tour import Tour, gap
from georoutenet.solver.edges import EdgeMarginals, EdgeProbabilities
from georoutenet.stop import Progress

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure
    from numpy.typing import ArrayLike

PathLike = str | os.PathLike[str]


@dataclass(frozen=True, eq=False, repr=False)
class Result:
    """A tour and how it came about. Two results are equal only if they are the same object."""

    instance: Instance
    tour: Tour
    """The cities in visiting order, counting from 0."""
    length: float
    """Under the instance's own rule: int for TSPLIB's rules, else float; kilometers for ``lat,lon``."""
    closed: bool = True
    """Whether the way back to the first city counts."""
    method: str = ""
    """How the first tour was made, for example ``georoutenet-50, beam-1000-views-4``."""
    timings: dict[str, float] = field(default_factory=dict)
    """Seconds: ``load`` (imports, weights, compiled code), ``network``, ``decode`` (or ``construct``),
    ``improve``, and the ``total`` since the call. Where something had to be compiled also ``compile``, which
    no time limit counts and which is in none of the others."""
    history: list[Progress] = field(default_factory=list, repr=False)
    """The first tour, then each improvement; seconds count from the call."""
    iterations: int = 0
    """Perturbations that the local search tried."""
    notes: list[str] = field(default_factory=list)
    """What did not go as usual, for example that the time limit left no room for the network."""
    interrupted: bool = False
    """Whether Ctrl-C ended the work; the tour is the best so far."""
    lower_bound: float | None = None
    """No closed tour is shorter (Held and Karp's bound); None for paths, without local search, above
    10,000 cities and, where time is short, above 5,000. ``georoutenet.search.ascent.lower_bound`` finds one
    up to 20,000 cities."""
    edges: EdgeProbabilities | None = field(default=None, repr=False)
    """What the network said of the next city, where it was asked for the tour."""
    score: Callable[[], EdgeMarginals] | None = field(default=None, repr=False, compare=False)
    """Asks the network which edges its tours take."""

    def __repr__(self) -> str:
        unit = f" {self.instance.unit}" if self.instance.unit else ""
        length = self.length if isinstance(self.length, int) else format(self.length, ".8g")
        parts = [repr(self.instance.name), f"n={self.instance.n}", f"length={length}{unit}"]
        parts += [] if self.gap is None else [f"gap={self.gap:.3f} %"]
        parts += [] if self.closed else ["open path"]
        parts += [f"{self.timings['total']:.2f} s"] if "total" in self.timings else []
        return f"Result({', '.join(parts)})"

    def _repr_html_(self) -> str:
        """A picture of the tour in a notebook."""
        instance = self.instance
        places = instance.plane if instance.has_coordinates else None
        return sketch(repr(self), places, self.tour, closed=self.closed, turn=instance.map_turn)

    @property
    def optimum(self) -> float | None:
        """The best length known, where one is; those are of closed tours."""
        return self.instance.optimum if self.closed else None

    @property
    def gap(self) -> float | None:
        """Percent above the optimum, Eq. eval_gap; None where none is known."""
        return None if self.optimum is None else float(gap(self.length, self.optimum))

    @property
    def gap_bound(self) -> float | None:
        """Percent above the shortest tour at most, by the lower bound; None where there is no bound."""
        return None if self.lower_bound is None else float(gap(self.length, self.lower_bound))

    @property
    def searched(self) -> bool:
        """Whether a local search was made, however short."""
        return "improve" in self.timings

    @property
    def initial_length(self) -> float:
        """The length before the local search."""
        return self.history[0].length if self.history else self.length

    def edge_marginals(self) -> EdgeMarginals:
        """How often tours that the network draws take each edge; above 10,000 cities slow."""
        if self.score is None:
            raise InputError("there are no edge probabilities: the result names no network")
        return self.score()

    def plot(
        self,
        path: PathLike | None = None,
        *,
        probabilities: bool = False,
        outline: ArrayLike | None = None,
    ) -> Figure:
        """Draw the tour, on request with the network's edge probabilities behind it, and an outline.

        Notebooks show the figure. The probabilities are those of `edge_marginals`, for which the network is
        asked now. The ``outline (m, 2)`` is a line in the instance's own coordinates, a coast for example.
        """
        from georoutenet.plot import plot_tour

        found = self.edge_marginals() if probabilities else None
        return shown_by_notebooks(
            plot_tour(
                self.instance,
                self.tour,
                path,
                closed=self.closed,
                lower_bound=self.lower_bound,
                edge_probabilities=None if found is None else (found.edges, found.probabilities),
                outline=outline,
            )
        )

    def plot_progress(self, path: PathLike | None = None) -> Figure:
        """Draw the length of the best tour over time; refused where no search was made."""
        from georoutenet.plot import plot_progress

        instance = self.instance.replaced(optimum=self.optimum)
        if not self.searched:
            raise InputError("there is no progress to draw: no search was made")
        end = self.timings.get("total")
        figure = plot_progress(instance, self.history, path, end=end, lower_bound=self.lower_bound)
        return shown_by_notebooks(figure)

    def save(self, path: PathLike) -> None:
        """Write the tour as ``.tour``, ``.csv``, ``.geojson``, ``.gpx`` or ``.json`` (all that is known)."""
        if path_name(path).lower().endswith(".json"):
            with atomic_write(path) as file:
                file.write(json.dumps({**self.to_dict(), "visits": self.visits()}) + "\n")
        else:
            write_tour(path, self.tour, self.instance, closed=self.closed)

    def visits(self) -> list[dict[str, Any]]:
        """The cities in visiting order: position, number, place and the instance's columns of each."""
        return visits(self.tour, self.instance)

    def to_frame(self) -> pandas.DataFrame:
        """The visits as a pandas data frame, indexed by the ids where the cities have some.

        ``city`` counts rows of what was given, so ``df.iloc[result.tour]`` is the caller's own frame in this
        order, with all its types.
        """
        return to_frame(self.tour, self.instance)

    def to_dict(self) -> dict[str, Any]:
        """Everything but coordinates and history, ready for JSON; with ``visits`` where there are columns."""
        content = {
            "name": self.instance.name,
            "n": self.instance.n,
            "rule": self.instance.rule.value,
            "unit": self.instance.unit,
            "length": self.length,
            "closed": self.closed,
            "optimum": self.optimum,
            "gap_percent": self.gap,
            "lower_bound": self.lower_bound,
            "gap_bound_percent": None if self.gap_bound == math.inf else self.gap_bound,
            "initial_length": self.initial_length,
            "method": self.method,
            "iterations": self.iterations,
            "timings": {name: round(seconds, 6) for name, seconds in self.timings.items()},
            "notes": self.notes,
            "interrupted": self.interrupted,
            "tour": self.tour.tolist(),
        }
        return {**content, "visits": self.visits()} if self.instance.columns else content


def shown_by_notebooks(figure: Figure) -> Figure:
    """The figure as one that a notebook draws; matplotlib's own are drawn there only through pyplot."""

    def png() -> bytes:
        stream = io.BytesIO()
        figure.savefig(stream, format="png", dpi=100, bbox_inches="tight")
        return stream.getvalue()

    figure._repr_png_ = png  # type: ignore[attr-defined]
    return figure
