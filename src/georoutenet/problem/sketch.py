"""A small picture for notebooks: HTML with the cities as SVG, made without a drawing library."""

from __future__ import annotations

import html
import math

import numpy as np
from numpy.typing import NDArray

from georoutenet.problem.globe import cut_at_border

LARGEST = 20_000
"""Cities at most; the picture stays in the notebook's file."""
TOUR_COLOR, CITY_COLOR = "#0072b2", "#222222"
_SIDE, _MARGIN = 360.0, 6.0


def sketch(
    caption: str,
    coordinates: NDArray[np.float64] | None,
    tour: NDArray[np.int64] | None = None,
    *,
    closed: bool = True,
    turn: float = math.inf,
) -> str:
    """The caption and below it the cities, with the tour where there is one; its first city is larger.

    ``turn`` is once around the Earth, see ``georoutenet.problem.globe.map_turn``.
    """
    text = f"<div><code>{html.escape(caption)}</code></div>"
    if coordinates is None or len(coordinates) > LARGEST:
        return text
    shifted = coordinates - coordinates.min(axis=0)
    span = shifted.max()
    scale = _SIDE / span if span > 0 else 0.0
    points = shifted * scale + _MARGIN
    width, height = points.max(axis=0) + _MARGIN
    points[:, 1] = height - points[:, 1]  # north is up
    drawn = []
    if tour is not None:
        line = coordinates[np.append(tour, tour[0]) if closed else tour]
        parts = cut_at_border(line, turn)  # they end outside of the picture
        edge = np.array([_MARGIN, height - _MARGIN])
        drawn = [_path([(part - coordinates.min(axis=0)) * scale * (1, -1) + edge for part in parts])]
    radius = max(0.6, min(2.5, 60.0 / len(points) ** 0.5))
    # A line of no length with round ends is a dot: one element for all of them.
    dots = "".join(f"M{x:.1f} {y:.1f}h0" for x, y in points)
    drawn.append(
        f'<path d="{dots}" stroke="{CITY_COLOR}" stroke-width="{2 * radius:.1f}" stroke-linecap="round"/>'
    )
    if tour is not None:
        x, y = points[tour[0]]
        drawn.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{1.8 * radius:.1f}" fill="{CITY_COLOR}"/>')
    size = f'width="{width:.0f}" height="{height:.0f}" viewBox="0 0 {width:.1f} {height:.1f}"'
    # White behind it: a notebook may be dark.
    style = 'style="background:white" fill="none"'
    return f'{text}<svg xmlns="http://www.w3.org/2000/svg" {size} {style}>{"".join(drawn)}</svg>'


def _path(parts: list[NDArray[np.float64]]) -> str:
    lines = ["L".join(f"{x:.1f} {y:.1f}" for x, y in part) for part in parts]
    return f'<path d="M{"M".join(lines)}" stroke="{TOUR_COLOR}" stroke-width="1.2"/>'
