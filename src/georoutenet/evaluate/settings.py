"""How a set is solved: a ``Decoding`` and what goes with it, written short as in the names of files."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field, fields
from typing import Any

from georoutenet.decode.decoding import DECODERS, NUMBER, Decoding
from georoutenet.errors import InputError, whole
from georoutenet.policy.policy import STATISTICS


@dataclass(frozen=True)
class Settings:
    """How a set is solved. ``batch = None`` is the protocol's: 128 on random sets, 1 on TSPLIB."""

    decoding: Decoding = field(default_factory=Decoding)
    _: KW_ONLY
    improve: float = 0.0
    """Seconds of local search on each decoded tour; 0: none, as in the paper."""
    statistics: str = "frozen"
    """Of NAR4TSP's norms; GeoRouteNet has none."""
    limit: int | None = None
    """Only this many instances, from the first on."""
    batch: int | None = None
    seed: int = 0
    """Of sampling, of the views after the eight of the square, and of local search."""

    def __post_init__(self) -> None:
        if not isinstance(self.decoding, Decoding):
            raise InputError(f"decoding must be a Decoding, got {self.decoding!r}; parse_decoder reads text")
        if self.statistics not in STATISTICS:
            raise InputError(f"unknown statistics {self.statistics!r}; allowed: {', '.join(STATISTICS)}")
        for name in ("limit", "batch"):
            if getattr(self, name) is not None:
                whole(name, getattr(self, name))
        whole("seed", self.seed, least=0)
        if not (math.isfinite(self.improve) and self.improve >= 0):
            raise InputError(f"improve must be a number of seconds >= 0, got {self.improve}")

    @property
    def decoder_label(self) -> str:
        """``greedy``, ``beam-9-views-8-finalists-2-dominance-length-60-improve-0.1``: what
        ``parse_decoder`` reads."""
        return self.decoding.decoder_label + (f"-improve-{self.improve:g}" if self.improve else "")

    @property
    def label(self) -> str:
        """Short and usable in a file name: the decoder's label and every setting that is not the default."""
        parts = [self.decoder_label, self.statistics if self.statistics != "frozen" else ""]
        parts += [self.decoding.scores_label, "" if self.limit is None else f"first-{self.limit}"]
        return "-".join(filter(None, parts))


_IMPROVE = re.compile(rf"-improve-({NUMBER})(?=-|$)")


def parse_decoder(text: str, *, alone: Mapping[str, Any] | None = None, **others: Any) -> Settings:
    """Settings from a decoder's label; ``others`` say what the label does not.

    ``alone`` are settings of a decoder that is merely named: a label that says more refuses them.
    """
    of_decoding = {each.name for each in fields(Decoding)}
    given = {name: others.pop(name) for name in of_decoding & others.keys()}
    improve = _IMPROVE.search(text)
    if improve is not None:
        others["improve"] = float(improve[1])
    label = _IMPROVE.sub("", text, count=1)
    if alone and label not in DECODERS:
        Decoding.parse(label)
        raise InputError(
            f"decoder {text!r} says all; give it without {', '.join(alone)}, "
            f"or merely its name ({', '.join(DECODERS)})"
        )
    return Settings(Decoding.parse(label, **given, **(alone or {})), **others)


def settings_of(header: Mapping[str, str]) -> Settings:
    """The settings that a file of results was made with; older headers lack what was not there yet."""
    try:
        return Settings(
            Decoding.from_header(header),
            improve=float(header.get("improve") or 0.0),
            statistics=header.get("statistics") or "frozen",
            seed=int(header.get("seed", "0")),
            batch=int(header.get("batch", "1")),
        )
    except InputError:
        raise
    except (KeyError, ValueError) as error:
        raise InputError(f"the header of results cannot be read: {error}") from None


def header_of(settings: Settings) -> dict[str, str]:
    """The part of a header that ``settings_of`` reads; empty stands for the default or for what has none."""
    return {
        **settings.decoding.header(),
        "improve": f"{settings.improve:g}" if settings.improve else "",
        "seed": str(settings.seed),
        "statistics": settings.statistics,
    }
