"""How a set is solved: the decoder and all that goes with it, written short as in the names of files."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, get_args

import torch

from georoutenet.decode.common import whole
from georoutenet.decode.views import Decoder
from georoutenet.errors import InputError
from georoutenet.policy.policy import STATISTICS

PRECISIONS = {"float32": None, "bfloat16": torch.bfloat16}


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How a set is solved. ``batch = None`` is the protocol's: 128 on random sets, 1 on TSPLIB."""

    decoder: str = "greedy"
    width: int = 1000
    """Beams or samples of an instance, all views together; greedy has none."""
    views: int = 1
    """1: the instance as it is. More: rotated and reflected copies share the width."""
    finalists: int = 0
    """So many of the views share most of a beam's width, after a first look at all; 0: all share it."""
    dominance: bool = False
    """Of beams with the same first city, visited set and last city keep the shortest; not in the paper."""
    length_weight: float = 0.0
    """Beams are ranked by log-probability less this times the length so far; 0: as in the paper."""
    improve: float = 0.0
    """Seconds of local search on each decoded tour; 0: none, as in the paper."""
    statistics: str = "frozen"
    """Of NAR4TSP's norms; GeoRouteNet has none."""
    candidates: int | None = None
    """Nearest cities of each city that are scored; others on demand. ``None``: all, as in the paper."""
    limit: int | None = None
    """Only this many instances, from the first on."""
    batch: int | None = None
    precision: str = "float32"
    seed: int = 0
    """Of sampling, of the views after the eight of the square, and of local search."""

    def __post_init__(self) -> None:
        for name, allowed in (
            ("decoder", get_args(Decoder)),
            ("statistics", STATISTICS),
            ("precision", PRECISIONS),
        ):
            if getattr(self, name) not in allowed:
                given = getattr(self, name)
                raise InputError(f"unknown {name} {given!r}; allowed: {', '.join(allowed)}")
        for name in ("width", "views", "candidates", "limit", "batch"):
            if getattr(self, name) is not None:
                whole(name, getattr(self, name))
        for name in ("seed", "finalists"):
            whole(name, getattr(self, name), least=0)
        for name, what in (("improve", "a number of seconds"), ("length_weight", "a number")):
            if not (math.isfinite(getattr(self, name)) and getattr(self, name) >= 0):
                raise InputError(f"{name} must be {what} >= 0, got {getattr(self, name)}")
        if self.decoder != "beam" and (self.dominance or self.length_weight or self.finalists):
            of_beams = "dominance, length_weight and finalists"
            raise InputError(f"{of_beams} are of beams, the decoder is {self.decoder}")
        if self.finalists and self.finalists >= self.views:
            raise InputError(f"{self.finalists} finalists are not fewer than the views, {self.views}")
        if self.finalists and self.width <= self.views:
            raise InputError(f"{self.width} beams in {self.views} views leave none for finalists")

    @property
    def decoder_label(self) -> str:
        """``greedy``, ``beam-1000``, ``beam-9-views-8-finalists-2-dominance-length-60-improve-0.1``: what
        ``parse_decoder`` reads."""
        parts = [self.decoder if self.decoder == "greedy" else f"{self.decoder}-{self.width}"]
        if self.views > 1:
            parts.append(f"views-{self.views}")
        if self.finalists:
            parts.append(f"finalists-{self.finalists}")
        if self.dominance:
            parts.append("dominance")
        if self.length_weight:
            parts.append(f"length-{self.length_weight:g}")
        if self.improve:
            parts.append(f"improve-{self.improve:g}")
        return "-".join(parts)

    @property
    def label(self) -> str:
        """Short and usable in a file name: the decoder's label and every setting that is not the default."""
        parts = [self.decoder_label]
        if self.statistics != "frozen":
            parts.append(self.statistics)
        if self.candidates is not None:
            parts.append(f"candidates-{self.candidates}")
        if self.precision != "float32":
            parts.append(self.precision)
        if self.limit is not None:
            parts.append(f"first-{self.limit}")
        return "-".join(parts)


_NUMBER = r"(\d+(?:\.\d+)?)"
_DECODER = re.compile(
    r"([a-z]+)(?:-(\d+))?(?:-views-(\d+))?(?:-finalists-(\d+))?(-dominance)?"
    rf"(?:-length-{_NUMBER})?(?:-improve-{_NUMBER})?"
)


def parse_decoder(text: str, **others: Any) -> Settings:
    """Settings from a decoder's label; ``others`` say what the label does not."""
    match = _DECODER.fullmatch(text)
    if match is None or (match[1] == "greedy" and match[2]):
        raise InputError(
            f"unknown decoder {text!r}; they are written like greedy, beam-100, sample-64, "
            "beam-1000-views-8, beam-1000-views-8-finalists-2-dominance-length-60, beam-1000-improve-0.1"
        )
    said = {"width": match[2], "views": match[3], "finalists": match[4]}
    numbers = {name: int(value) for name, value in said.items() if value is not None}
    weights = {"length_weight": match[6], "improve": match[7]}
    given = {name: float(value) for name, value in weights.items() if value is not None}
    dominance = {"dominance": True} if match[5] else {}
    return Settings(**{**others, "decoder": match[1], **numbers, **dominance, **given})


def settings_of(header: Mapping[str, str]) -> Settings:
    """The settings that a file of results was made with; older headers lack what was not there yet."""
    return Settings(
        decoder=header["decoder"],
        width=int(header["width"] or Settings.width),
        views=int(header.get("views", "1")),
        finalists=int(header.get("finalists") or 0),
        dominance=bool(header.get("dominance")),
        length_weight=float(header.get("length_weight") or 0.0),
        improve=float(header.get("improve") or 0.0),
        statistics=header.get("statistics") or "frozen",
        candidates=int(header["candidates"]) if header.get("candidates") else None,
        precision=header.get("precision", "float32"),
        seed=int(header.get("seed", "0")),
        batch=int(header.get("batch", "1")),
    )
