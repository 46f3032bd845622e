"""How scores become tours: the settings of a decoder, written short as in ``beam-1000-views-8-dominance``.

This is the one place where a setting of decoding is listed, checked, read and printed. ``solve``,
``evaluate``, the command line and the headers of result files share it. It does not need torch.
"""

from __future__ import annotations

import math
import re
from dataclasses import KW_ONLY, dataclass
from typing import Any

from georoutenet.errors import InputError, whole

DECODERS = ("greedy", "sample", "beam")
PRECISIONS = ("float32", "bfloat16")


@dataclass(frozen=True)
class Decoding:
    """A decoder with its settings. The defaults are the paper's: one view, all pairs scored, a plain beam."""

    decoder: str = "greedy"
    _: KW_ONLY
    width: int = 1000
    """Beams or samples of an instance, shared by its views; greedy has none."""
    views: int = 1
    """1: the instance as it is. More: rotated and reflected copies, the cheapest tour of all is kept."""
    finalists: int = 0
    """This many views, the best after a first look at all, share most of a beam's width; 0: all share it."""
    dominance: bool = False
    """Of beams with the same first city, visited set and last city keep the shortest; not in the paper."""
    length_weight: float = 0.0
    """Beams are ranked by log-probability less this times the length so far; 0: as in the paper."""
    candidates: int | None = None
    """Nearest cities of each city that are scored, others on demand. ``None``: all, as in the paper."""
    precision: str = "float32"
    """Of the network's matrix products."""

    def __post_init__(self) -> None:
        for name, allowed in (("decoder", DECODERS), ("precision", PRECISIONS)):
            if getattr(self, name) not in allowed:
                raise InputError(f"unknown {name} {getattr(self, name)!r}; allowed: {', '.join(allowed)}")
        whole("width", self.width)
        whole("views", self.views)
        whole("finalists", self.finalists, least=0)
        if self.candidates is not None:
            whole("candidates", self.candidates)
        if not (math.isfinite(self.length_weight) and self.length_weight >= 0):
            raise InputError(f"length_weight must be a number >= 0, got {self.length_weight}")
        if self.decoder != "beam" and (self.dominance or self.length_weight or self.finalists):
            of_beams = "dominance, length_weight and finalists"
            raise InputError(f"{of_beams} are of beams, the decoder is {self.decoder}")
        if self.finalists and self.finalists >= self.views:
            raise InputError(f"{self.finalists} finalists are not fewer than the views, {self.views}")
        if self.finalists and self.width <= self.views:
            raise InputError(f"{self.width} beams in {self.views} views leave none for finalists")

    @property
    def decoder_label(self) -> str:
        """Use of the scores: ``greedy``, ``beam-1000-views-32-finalists-8-dominance-length-60``."""
        parts = [self.decoder if self.decoder == "greedy" else f"{self.decoder}-{self.width}"]
        parts += [f"views-{self.views}"] if self.views > 1 else []
        parts += [f"finalists-{self.finalists}"] if self.finalists else []
        parts += ["dominance"] if self.dominance else []
        parts += [f"length-{self.length_weight:g}"] if self.length_weight else []
        return "-".join(parts)

    @property
    def scores_label(self) -> str:
        """``candidates-16-bfloat16``: which scores the network gives; empty for all pairs in float32."""
        parts = [] if self.candidates is None else [f"candidates-{self.candidates}"]
        parts += [self.precision] if self.precision != "float32" else []
        return "-".join(parts)

    def __str__(self) -> str:
        return "-".join(filter(None, (self.decoder_label, self.scores_label)))

    @classmethod
    def parse(cls, text: str, **others: Any) -> Decoding:
        """The settings that ``str`` printed as ``text``; ``others`` say what the text leaves out."""
        match = _LABEL.fullmatch(text) if isinstance(text, str) else None
        if match is None or (match["decoder"] == "greedy" and match["width"]):
            raise InputError(f"unknown decoder {text!r}; they are written like {', '.join(EXAMPLES)}")
        read = {
            name: _READ.get(name, int)(value)
            for name, value in match.groupdict().items()
            if value is not None
        }
        return cls(**{**others, **read})


EXAMPLES = (
    *("greedy", "beam-100", "sample-64", "beam-1000-views-8"),
    *("beam-1000-views-32-finalists-8-dominance-length-60", "greedy-candidates-16-bfloat16"),
)
NUMBER = r"\d+(?:\.\d+)?(?:e[+-]?\d+)?"
_LABEL = re.compile(
    r"(?P<decoder>[a-z]+)(?:-(?P<width>\d+))?(?:-views-(?P<views>\d+))?(?:-finalists-(?P<finalists>\d+))?"
    rf"(?P<dominance>-dominance)?(?:-length-(?P<length_weight>{NUMBER}))?"
    r"(?:-candidates-(?P<candidates>\d+))?(?:-(?P<precision>float32|bfloat16))?"
)
_READ: dict[str, Any] = {"decoder": str, "precision": str, "dominance": bool, "length_weight": float}

RECOMMENDED = Decoding("beam", width=1000, views=8, dominance=True, length_weight=60.0)
"""For a good tour, chosen on val50 and diag100: see ``docs/decoding.md``."""
