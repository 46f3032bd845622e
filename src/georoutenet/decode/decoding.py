"""How scores become tours: the settings of a decoder, written short as in ``beam-1000-views-8-dominance``.

This is the one place where a setting of decoding is listed, checked, read and printed. ``solve``,
``evaluate``, the command line and the headers of result files share it. It does not need torch.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import KW_ONLY, Field, dataclass, field, fields
from typing import Any

from georoutenet.errors import InputError, whole

DECODERS = ("greedy", "sample", "beam")
PRECISIONS = ("float32", "bfloat16")
MOST_VIEWS = 10_000
"""All views are laid out before the first is scored, which no time limit interrupts."""


def _printed(label: str, words: str, of: str = "decoder") -> dict[str, str]:
    """How a setting that is not the default is printed: short, and in words; and what it is a setting of."""
    return {"label": label, "words": words, "of": of}


@dataclass(frozen=True)
class Decoding:
    """A decoder with its settings. The defaults are the paper's: one view, all pairs scored, a plain beam."""

    decoder: str = "greedy"
    _: KW_ONLY
    width: int = 1000
    """Beams or samples of an instance, shared by its views; greedy has none."""
    views: int = field(default=1, metadata=_printed("views-{}", "{} views"))
    """1: the instance as it is. More: rotated and reflected copies, the cheapest tour of all is kept."""
    finalists: int = field(default=0, metadata=_printed("finalists-{}", "{} finalists"))
    """This many views, the best after a first look at all, share most of a beam's width; 0: all share it."""
    dominance: bool = field(default=False, metadata=_printed("dominance", "dominance"))
    """Of beams with the same first city, visited set and last city keep the shortest; not in the paper."""
    length_weight: float = field(default=0.0, metadata=_printed("length-{:g}", "length {:g}"))
    """Beams are ranked by log-probability less this times the length so far; 0: as in the paper."""
    merge: bool = field(default=False, metadata=_printed("merge", "merged"))
    """Of all tours found take the parts in which each is shortest (partition crossover); not in the paper."""
    candidates: int | None = field(
        default=None, metadata=_printed("candidates-{}", "{} candidates", of="scores")
    )
    """Cities around each city that are scored, others on demand. ``None``: all, as in the paper."""
    precision: str = field(default="float32", metadata=_printed("{}", "{}", of="scores"))
    """Of the network's matrix products."""

    def __post_init__(self) -> None:
        for name, allowed in (("decoder", DECODERS), ("precision", PRECISIONS)):
            if getattr(self, name) not in allowed:
                raise InputError(f"unknown {name} {getattr(self, name)!r}; allowed: {', '.join(allowed)}")
        whole("width", self.width)
        whole("views", self.views, most=MOST_VIEWS)
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
    def _head(self) -> str:
        return self.decoder if self.decoder == "greedy" else f"{self.decoder}-{self.width}"

    def _parts(self, form: str, of: str) -> Iterator[str]:
        for each in fields(self):
            value = getattr(self, each.name)
            if each.metadata.get("of") == of and value != each.default:
                yield each.metadata[form].format(value)

    @property
    def decoder_label(self) -> str:
        """Use of the scores: ``greedy``, ``beam-1000-views-32-finalists-8-dominance-length-60``."""
        return "-".join([self._head, *self._parts("label", "decoder")])

    @property
    def scores_label(self) -> str:
        """Which scores the network gives: ``candidates-16-bfloat16``; empty for all pairs in float32."""
        return "-".join(self._parts("label", "scores"))

    def __str__(self) -> str:
        return "-".join(filter(None, (self.decoder_label, self.scores_label)))

    @property
    def decoder_words(self) -> list[str]:
        """``decoder_label`` as tables print it: ``Beam-1000``, ``8 views``, ``dominance``."""
        return [self._head.capitalize(), *self._parts("words", "decoder")]

    @property
    def scores_words(self) -> list[str]:
        """``scores_label`` as tables print it: ``16 candidates``, ``bfloat16``."""
        return list(self._parts("words", "scores"))

    @classmethod
    def parse(cls, text: str, **others: Any) -> Decoding:
        """The settings that ``str`` printed as ``text``; ``others`` say what the text leaves out."""
        match = _LABEL.fullmatch(text) if isinstance(text, str) else None
        if match is None or (match["decoder"] == "greedy" and match["width"]):
            raise InputError(f"unknown decoder {text!r}; they are written like {', '.join(EXAMPLES)}")
        return cls(**{**others, **_read(match.groupdict())})

    def header(self) -> dict[str, str]:
        """The settings as a file of results holds them, by name; empty where there is none."""
        texts = {each.name: _text(getattr(self, each.name)) for each in fields(self)}
        return texts | ({"width": ""} if self.decoder == "greedy" else {})

    @classmethod
    def from_header(cls, header: Mapping[str, str]) -> Decoding:
        """What ``header`` wrote; what an older file does not have is the default."""
        return cls(**_read(header))


def _text(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:g}" if value else ""
    return "yes" if value is True else str(value or "")


def _read(texts: Mapping[str, str | None]) -> dict[str, Any]:
    """The settings that are among ``texts``, each as what its default is; ``candidates`` are an int."""
    read: dict[str, Any] = {}
    for each in fields(Decoding):
        text = texts.get(each.name)
        if text:
            kind: Any = int if each.default is None else type(each.default)
            read[each.name] = kind(text)
    return read


EXAMPLES = (
    *("greedy", "beam-100", "sample-64", "beam-1000-views-8"),
    *("beam-1000-views-32-finalists-8-dominance-length-60", "greedy-candidates-16-bfloat16"),
)
NUMBER = r"\d+(?:\.\d+)?(?:e[+-]?\d+)?"


def _pattern(setting: Field[Any]) -> str:
    """A regular expression of a printed setting, which may be missing."""
    label, default = setting.metadata["label"], setting.default
    if isinstance(default, bool):
        return f"(?P<{setting.name}>-{label})?"
    value = {float: NUMBER, str: "|".join(PRECISIONS)}.get(type(default), r"\d+")
    return "(?:-" + re.sub(r"\{.*\}", lambda _: f"(?P<{setting.name}>{value})", label) + ")?"


_LABEL = re.compile(
    r"(?P<decoder>[a-z]+)(?:-(?P<width>\d+))?" + "".join(_pattern(each) for each in fields(Decoding)[2:])
)

RECOMMENDED = Decoding("beam", width=1000, views=8, dominance=True, length_weight=60.0, merge=True)
"""For a good tour, chosen on val50 and diag100: see ``docs/decoding.md``."""
