"""The options of ``solve`` and ``solve_many``, listed once: name, type, default and help.

Signatures, docstrings and the command line's help are made from ``SolveOptions``. ``SolveKeywords`` repeats
names and types for static type checkers, and a test compares the two.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar

from georoutenet.decode.decoding import DECODERS, MOST_VIEWS, PRECISIONS, Decoding
from georoutenet.device import check_device
from georoutenet.errors import InputError, whole
from georoutenet.io.packaged import find_weights
from georoutenet.stop import Progress, Stop

if TYPE_CHECKING:
    from georoutenet.policy.policy import Policy

Report = Callable[[str, Progress], None]
"""Called with the name of the stage (``load``, ``compile``, ``network``, ``first``, ``improve``; ``batch``
where many instances are searched together) and where it stands.

Lengths are infinite before the first tour, which ``first`` reports. From then on ``progress.tour()`` gives
the best tour so far; it costs nothing where it is not asked.
"""

FIRST = ("auto", "network", "greedy-edge", "curve")


CPU_NOTE = (
    "the first tour is greedy edge: on a CPU the network takes longer than its tour saves the search; "
    "first='network' asks it"
)
"""In the notes of most results on a CPU; measured in docs/solving.md."""
GPU_NOTE = "the first tour is the network's: it is asked on a GPU; first='greedy-edge' does without"
"""In the notes of most results on a GPU."""
USUAL = (CPU_NOTE, GPU_NOTE)
"""Notes of what happens unless something else is asked for; the command line leaves them out."""

MOST_WORKERS = 1_024
"""Each is a thread or, in a bulk run, a process: without a bound their making takes all memory."""


@dataclass(frozen=True, kw_only=True)
class SolveOptions:
    """The options of ``solve``, checked whether or not they will be used."""

    weights: str | Path | Policy = field(
        default="georoutenet", metadata={"help": "Packaged weights by name, or a file."}
    )
    decoder: str | Decoding | None = field(
        default=None,
        metadata={
            "help": "greedy, sample or beam, or in full as in beam-1000-views-32-dominance-length-60. "
            "Default: beam to 300 cities (without local search to 1,000), then greedy."
        },
    )
    beam_width: int | None = field(
        default=None,
        metadata={"help": "Beams or samples in all, shared by the views. Default: 1000, sparse samples 16."},
    )
    views: int | None = field(
        default=None, metadata={"help": "Rotated and reflected views of each instance. Default: by size."}
    )
    first: str = field(
        default="auto",
        metadata={
            "help": "Source of the first tour: network, greedy-edge or curve. auto: the network where "
            "weights or a decoder are named, without local search, and on a GPU up to 1,000 cities, while "
            "time allows; else greedy edge, else a curve."
        },
    )
    improve: bool = field(default=True, metadata={"help": "Local search, or the first tour as it is."})
    max_seconds: float | None = field(
        default=None, metadata={"help": "Time limit of each instance; compiling does not count."}
    )
    stop: Stop | None = field(
        default=None,
        metadata={"help": "A stopping criterion, as AnyOf(MaxTime(2), NoImprovement(1000))."},
    )
    seed: int = field(default=0, metadata={"help": "Of sampling, of random views and of local search."})
    device: str = field(default="auto", metadata={"help": "auto, cpu, cuda or cuda:N."})
    precision: str = field(
        default="auto",
        metadata={
            "help": "Of the network's products: float32, bfloat16, or auto: bfloat16 on GPUs that have it."
        },
    )
    start: int | str | None = field(
        default=None, metadata={"help": "First city: its position, counting from 0, or its id."}
    )
    end: int | str | None = field(
        default=None, metadata={"help": "Last city: its position, counting from 0, or its id."}
    )
    closed: bool = field(
        default=True, metadata={"help": "A tour, or a path: the way back to the first city does not count."}
    )
    workers: int | None = field(
        default=None,
        metadata={
            "help": "Threads that search a single instance (default: one per core from 200 cities on), or "
            "how many of several instances are searched at a time, one thread each (default: one per core). "
            f"At most {MOST_WORKERS:,}."
        },
    )
    progress: Report | None = field(
        default=None, metadata={"help": "Called with the name of the stage and where it stands."}
    )

    def __post_init__(self) -> None:
        if isinstance(self.weights, (str, Path)):
            find_weights(self.weights)
        elif not callable(self.weights):
            raise InputError(f"weights must be a name, a file or a Policy, got {self.weights!r}")
        for name, least in (("beam_width", 1), ("views", 1), ("workers", 1), ("start", 0), ("end", 0)):
            if getattr(self, name) is not None and not (least == 0 and isinstance(getattr(self, name), str)):
                most = {"views": MOST_VIEWS, "workers": MOST_WORKERS}.get(name)
                whole(name, getattr(self, name), least=least, most=most)
        whole("seed", self.seed, least=0)
        for name in ("improve", "closed"):
            if not _is_flag(getattr(self, name)):
                raise InputError(f"{name} must be True or False, got {getattr(self, name)!r}")
        check_device(self.device)
        if not isinstance(self.precision, str) or self.precision not in ("auto", *PRECISIONS):
            allowed = ", ".join(("auto", *PRECISIONS))
            raise InputError(f"unknown precision {self.precision!r}; allowed: {allowed}")
        limit = self.max_seconds
        if limit is not None and not (isinstance(limit, Real) and limit >= 0):
            raise InputError(f"max_seconds must be a number >= 0, got {limit!r}")
        if self.stop is not None and (isinstance(self.stop, type) or not hasattr(self.stop, "budget")):
            raise InputError(f"stop must be a stopping criterion such as MaxTime(1.0), got {self.stop!r}")
        if limit is not None and self.stop is not None:
            raise InputError("give max_seconds or stop, not both; AnyOf(MaxTime(2), ...) combines criteria")
        if self.progress is not None and not callable(self.progress):
            raise InputError(f"progress must be a function of stage and Progress, got {self.progress!r}")
        self._check_first()
        if self.precision == "float32" and self.decoding is not None and self.decoding.precision != "float32":
            raise InputError(f"decoder {str(self.decoding)!r} says {self.decoding.precision}, not float32")
        if self.decoding is not None and (self.beam_width is not None or self.views is not None):
            raise InputError(
                f"decoder {str(self.decoding)!r} says all; give it alone, or a name ({', '.join(DECODERS)}) "
                "with beam_width and views"
            )

    def _check_first(self) -> None:
        if not isinstance(self.first, str) or self.first not in FIRST:
            raise InputError(f"unknown first tour {self.first!r}; allowed: {', '.join(FIRST)}")
        for name in ("decoder", "beam_width", "views"):
            if self.first in ("greedy-edge", "curve") and getattr(self, name) is not None:
                raise InputError(f"{name} is of the network, which first={self.first!r} does not ask")

    @property
    def decoding(self) -> Decoding | None:
        """What the caller said in full; None where only a decoder's name was given, or nothing."""
        if self.decoder is None or isinstance(self.decoder, Decoding):
            return self.decoder
        if isinstance(self.decoder, str) and self.decoder in DECODERS:
            return None
        if isinstance(self.decoder, str) and "-improve-" in self.decoder:
            raise InputError(
                f"decoder {self.decoder!r}: -improve- belongs to evaluate; "
                "solve searches unless improve=False, and max_seconds limits it"
            )
        return Decoding.parse(self.decoder)

    @property
    def names_network(self) -> bool:
        """Whether the caller said anything about the network."""
        own = (self.decoder, self.beam_width, self.views)
        return any(each is not None for each in own) or self.weights != "georoutenet"

    @property
    def network_by_default(self) -> bool:
        """Whether size and device alone say if the network is asked."""
        return self.first == "auto" and self.improve and not self.names_network


def _is_flag(value: object) -> bool:
    try:
        return value in (True, False)
    except ValueError:  # an array has no single answer
        return False


class SolveKeywords(TypedDict, total=False):
    """``SolveOptions`` for type checkers."""

    weights: str | Path | Policy
    decoder: str | Decoding | None
    beam_width: int | None
    views: int | None
    first: str
    improve: bool
    max_seconds: float | None
    stop: Stop | None
    seed: int
    device: str
    precision: str
    start: int | str | None
    end: int | str | None
    closed: bool
    workers: int | None
    progress: Report | None


Function = TypeVar("Function", bound=Callable[..., Any])

HELP: dict[str, str] = {each.name: each.metadata["help"] for each in fields(SolveOptions)}


def read_options(function: str, given: SolveKeywords) -> SolveOptions:
    """Keywords as checked options; an unknown one is named with those that are known."""
    unknown = sorted(set(given) - set(HELP))
    if unknown:
        raise InputError(f"{function} has no option {unknown[0]!r}; allowed: {', '.join(HELP)}")
    return SolveOptions(**given)


def takes_options(function: Function) -> Function:
    """Give a function that takes ``**options`` their signature, and list them in its docstring."""
    own = inspect.signature(function)
    named = [each for each in own.parameters.values() if each.kind is not inspect.Parameter.VAR_KEYWORD]
    options = [
        inspect.Parameter(
            each.name, inspect.Parameter.KEYWORD_ONLY, default=each.default, annotation=each.type
        )
        for each in fields(SolveOptions)
    ]
    function.__signature__ = own.replace(parameters=[*named, *options])  # type: ignore[attr-defined]
    listed = "\n".join(f"    {each.name} = {each.default!r}: {HELP[each.name]}" for each in options)
    function.__doc__ = f"{inspect.cleandoc(function.__doc__ or '')}\n\nOptions:\n{listed}\n"
    return function
