"""A recipe: every setting of a training run in one dataclass, read from a TOML file."""

from __future__ import annotations

import dataclasses
import math
import tomllib
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from georoutenet.decode.decoding import Decoding
from georoutenet.errors import InputError
from georoutenet.model.config import PolicyConfig
from georoutenet.problem.shapes import SHAPES
from georoutenet.train.objectives import MultiCandidate
from georoutenet.train.pins import COMPONENTS

OBJECTIVES = ("mcs", "pg")
SCHEDULES = ("constant", "cosine")
SCHEDULE_UNITS = ("steps", "seconds")
PRECISIONS = ("float32", "bfloat16")
DISTRIBUTIONS = tuple(SHAPES)

FREE = frozenset({"log_every", "checkpoint_every", "compile", "cuda_graph", "fused", "recompute"})
"""Settings that do not change what is learned: a run may be resumed with other values."""


def _positive(name: str, value: float, *, least: float = 1) -> None:
    if not value >= least:  # nor what is not a number
        raise InputError(f"{name} = {value} is not understood; allowed: {least} or more")


def _one_of(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise InputError(f"{name} = {value!r} is not understood; allowed: {', '.join(allowed)}")


@dataclass(frozen=True, kw_only=True)
class Batch:
    """One kind of training batch: every instance of it has ``n`` cities and the same distribution."""

    n: int = 50
    batch: int = 64
    distribution: str = "uniform"
    sparse: int = 0
    """How many cities around it a city chooses from (`Policy.over_candidates`); 0, as in the paper: all."""
    weight: float = 1.0
    """How often this kind is drawn, relative to the others of the mix."""

    def __post_init__(self) -> None:
        _positive("n", self.n, least=3)
        _positive("batch", self.batch)
        _positive("sparse", self.sparse, least=0)
        _one_of("distribution", self.distribution, DISTRIBUTIONS)
        if not self.weight > 0:
            raise InputError(f"weight = {self.weight} is not understood; allowed: more than 0")


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """The settings of a training run. The defaults are the paper's GeoRouteNet with MCS-RL."""

    name: str = "unnamed"
    seed: int = 1234
    policy: PolicyConfig = field(default_factory=PolicyConfig)
    pin: tuple[str, ...] = ()
    """Components of GeoRouteNet to hold where they do nothing (`georoutenet.train.pins`), for ablations."""

    # data: fresh instances every step
    n: int = 50
    """Cities; with a mix, those of the validation."""
    batch: int = 64
    """Instances per step over all processes."""
    distribution: str = "uniform"
    sparse: int = 0
    """As in `Batch`; with a mix, that of the validation."""
    mix: tuple[Batch, ...] = ()
    """Kinds of batches to draw from, in place of ``n``, ``batch``, ``distribution`` and ``sparse``."""

    # objective
    objective: str = "mcs"
    candidates: int = 3
    baseline: str = "min"
    standardization: str = "joint"
    best_of: int = 1
    guidance: float = 0.5
    entropy_first: float = 0.0125
    entropy_last: float = 0.0
    entropy_floor: float = 0.0
    """Nats per city: while tours have less, their entropy's coefficient is ``entropy_first``; 0 for none."""

    # optimizer
    learning_rate: float = 1e-4
    weight_decay: float = 0.0
    clip: float = 0.0
    """Largest gradient norm; 0 leaves gradients alone."""
    averaging: float = 0.0
    """Decay of the running average of the weights, which is then validated and kept; 0 for none."""

    # length and schedule
    steps: int = 2_500_000
    epoch_steps: int = 2_500
    schedule: str = "constant"
    warmup: float = 0.0
    """Share of the run over which the learning rate rises linearly from 0."""
    final_rate: float = 0.0
    """Where the cosine ends, as a share of ``learning_rate``."""
    schedule_by: str = "steps"
    """Learning rate and entropy coefficient follow ``steps``, or the ``seconds`` of training so far."""
    budget_seconds: float = 0.0
    """Training ends after this many seconds of training; 0 for no limit."""

    # selection
    validation: str = "val50"
    """``val50``, ``diag100``, another set, or a distribution: ``n`` cities, from ``validation_seed``."""
    validation_decoder: str = "greedy"
    """A `Decoding` in its short form: of views, say, where it is the views together that shall be good."""
    validation_size: int = 10_000
    validation_seed: int = 4321
    validation_batch: int = 500
    validation_every: int = 0
    """Steps between validations; 0 for every epoch."""

    # running
    initial: str = ""
    """Weights to start from: a packaged name or a file. Empty: a fresh initialization from ``seed``."""
    precision: str = "float32"
    compile: bool = True
    """On CUDA, compile the network and the loss."""
    fused: bool = True
    """On CUDA, run the network (in bfloat16) and Adam in kernels of our own."""
    recompute: int = 1
    """Of GeoRouteNet's kernels: how many sets of edge states, at most every second one, the backward pass
    makes again, to save memory."""
    cuda_graph: bool = True
    """On CUDA, run the whole step as one captured graph."""
    triton: bool = True
    """On CUDA, draw tours in training with the Triton kernel; otherwise with plain tensor operations, and
    the step is not captured."""
    log_every: int = 100
    checkpoint_every: int = 0
    """Steps between checkpoints; 0 for every epoch."""

    def __post_init__(self) -> None:
        for name in ("batch", "candidates", "steps", "epoch_steps", "validation_size", "log_every"):
            _positive(name, getattr(self, name))
        for name in (
            "validation_every", "checkpoint_every", "budget_seconds", "clip", "weight_decay", "entropy_floor",
        ):  # fmt: skip
            _positive(name, getattr(self, name), least=0)
        decoding = Decoding.parse(self.validation_decoder)
        if decoding.candidates and self.sparse:
            raise InputError(
                f"validation_decoder = {self.validation_decoder!r} says how many candidates, and so does "
                f"sparse = {self.sparse}; allowed: one of them"
            )
        for name in ("guidance", "entropy_first", "entropy_last"):
            if not math.isfinite(getattr(self, name)):
                raise InputError(f"{name} = {getattr(self, name)} is not understood; allowed: numbers")
        _positive("n", self.n, least=3)
        _positive("validation_batch", self.validation_batch)
        _positive("sparse", self.sparse, least=0)
        _positive("recompute", self.recompute, least=0)
        if not self.learning_rate > 0:
            raise InputError(f"learning_rate = {self.learning_rate} is not understood; allowed: more than 0")
        for name in ("warmup", "averaging", "final_rate"):
            if not 0 <= getattr(self, name) < 1:
                raise InputError(f"{name} = {getattr(self, name)} is not understood; allowed: 0 to below 1")
        _one_of("objective", self.objective, OBJECTIVES)
        _one_of("schedule", self.schedule, SCHEDULES)
        _one_of("schedule_by", self.schedule_by, SCHEDULE_UNITS)
        _one_of("precision", self.precision, PRECISIONS)
        _one_of("distribution", self.distribution, DISTRIBUTIONS)
        if self.schedule_by == "seconds" and not self.budget_seconds:
            raise InputError('schedule_by = "seconds" needs budget_seconds, the seconds of the whole run')
        if self.objective == "pg" and self.candidates != 1:
            raise InputError(
                'objective = "pg" compares one candidate with the greedy tour, so '
                f"candidates = {self.candidates} does not fit; allowed: 1"
            )
        for component in self.pin:
            _one_of("pin", component, tuple(COMPONENTS))
        if len(set(self.pin)) < len(self.pin):
            raise InputError(f"pin = {list(self.pin)} names a component twice; allowed: each once")
        if self.pin and self.policy.encoder != "georoutenet":
            raise InputError(
                "pin is for the components of georoutenet; nar4tsp has none of them; allowed: []"
            )
        if self.policy.encoder != "georoutenet" and (self.sparse or any(kind.sparse for kind in self.mix)):
            raise InputError(
                "sparse is for georoutenet: the norms of nar4tsp read all pairs in training; allowed: 0"
            )
        settings = self.multi_candidate()  # checks the baseline and the standardization
        if settings.best_of > self.candidates:
            raise InputError(
                f"best_of = {self.best_of} needs at least as many candidates ({self.candidates})"
            )

    def multi_candidate(self) -> MultiCandidate:
        return MultiCandidate(
            baseline=self.baseline,
            standardization=self.standardization,
            best_of=self.best_of,
            guidance=self.guidance,
            entropy_floor=self.entropy_floor,
            entropy_below=self.entropy_first,
        )

    def batches(self) -> tuple[Batch, ...]:
        """The kinds of batches this run draws from."""
        own = {"n": self.n, "batch": self.batch, "distribution": self.distribution, "sparse": self.sparse}
        return self.mix or (Batch(**own),)  # type: ignore[arg-type]

    def to_dict(self) -> dict[str, Any]:
        values = dataclasses.asdict(self)
        values["mix"] = [dict(kind) for kind in values["mix"]]
        values["pin"] = list(values["pin"])
        return values

    def differences(self, other: Mapping[str, Any]) -> list[str]:
        """What differs from another recipe's ``to_dict()`` in a way that changes the result, in words."""
        mine = self.to_dict()
        with suppress(InputError):  # settings that were not there yet have their defaults
            other = recipe_from_dict(other).to_dict()
        return [
            f"{key}: {other.get(key)!r} there, {mine.get(key)!r} here"
            for key in sorted(mine.keys() | other.keys())
            if key not in FREE and mine.get(key) != other.get(key)
        ]


def _typed(key: str, value: Any, kind: str) -> Any:
    """``value`` as the field's type (given by name, as annotations are strings), or an error."""
    if isinstance(value, int) and not -(1 << 63) <= value < 1 << 63:
        raise InputError(f"{key} is not understood; a whole number of at most 64 bits is needed")
    if kind == "float" and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    expected = {"int": int, "float": float, "str": str, "bool": bool}[kind]
    if not isinstance(value, expected) or (kind == "int" and isinstance(value, bool)):
        raise InputError(f"{key} = {value!r} is not understood; a value of type {kind} is needed")
    return value


def _build(cls: type, values: Any, where: str = "") -> Any:
    """A dataclass from a TOML table, with every key and every type checked."""
    if not isinstance(values, Mapping):
        raise InputError(f"{where or 'recipe'} must be a table of settings, got {values!r}")
    kinds = {f.name: str(f.type) for f in dataclasses.fields(cls)}
    arguments: dict[str, Any] = {}
    for key, value in values.items():
        shown = f"{where}.{key}" if where else key
        if key not in kinds:
            near = get_close_matches(key, kinds, 1)
            hint = f" (did you mean {near[0]!r}?)" if near else ""
            raise InputError(f"unknown setting {shown!r}{hint}; allowed: {', '.join(kinds)}")
        if kinds[key] == "PolicyConfig":
            arguments[key] = _build(PolicyConfig, value, "policy")
        elif kinds[key].startswith("tuple[str"):
            if not isinstance(value, list):
                raise InputError(f"{shown} = {value!r} is not understood; a list of names is needed")
            arguments[key] = tuple(_typed(f"{shown}[{i}]", each, "str") for i, each in enumerate(value))
        elif kinds[key].startswith("tuple"):
            if not isinstance(value, list):
                raise InputError(f"{shown} = {value!r} is not understood; a list of tables is needed")
            arguments[key] = tuple(_build(Batch, kind, f"{key}[{i}]") for i, kind in enumerate(value))
        else:
            arguments[key] = _typed(shown, value, kinds[key])
    return cls(**arguments)


def _parse_value(text: str) -> Any:
    """A TOML value; a bare word is a string, so that ``--set baseline=mean`` needs no quotes."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):  # no TOML, thousands of digits, or nested beyond Python's stack
        return text


def recipe_from_dict(values: Mapping[str, Any], overrides: Iterable[str] = ()) -> Recipe:
    """A recipe from nested settings; ``overrides`` are ``key=value`` or ``policy.key=value``."""
    merged = {key: dict(value) if isinstance(value, Mapping) else value for key, value in values.items()}
    for override in overrides:
        key, sign, text = override.partition("=")
        if not sign or not key.strip():
            raise InputError(f"--set {override!r} is not understood; allowed: key=value")
        table, name = merged, key.strip()
        if "." in name:
            head, name = name.split(".", 1)
            table = merged.setdefault(head, {})
            if not isinstance(table, dict):
                raise InputError(f"--set {override!r} is not understood; {head!r} is not a table")
        table[name] = _parse_value(text.strip())
    if isinstance(old := merged.get("recompute"), bool):  # as checkpoints had it before it was a number
        merged["recompute"] = 3 if old else 0
    recipe: Recipe = _build(Recipe, merged)
    return recipe


PACKAGED = Path(__file__).parent.parent / "recipes"


def packaged_recipes() -> dict[str, Path]:
    """The recipes that come with the package, by name."""
    return {path.stem: path for path in sorted(PACKAGED.glob("*.toml"))}


def find_recipe(name_or_path: str | Path) -> Path:
    """A file, else the packaged recipe of that name; ``recipes/NAME.toml`` is one, where 0.1 had them."""
    path = Path(name_or_path)
    packaged = packaged_recipes()
    if path.is_file():
        return path
    if str(path) in packaged:
        return packaged[str(path)]
    if path.parent.name == "recipes" and path.suffix == ".toml" and path.stem in packaged:
        return packaged[path.stem]
    raise InputError(
        f"recipe {str(path)!r} does not exist, and none of that name is packaged "
        f"(packaged: {', '.join(packaged)})"
    )


def read_recipe(path: str | Path, overrides: Iterable[str] = ()) -> Recipe:
    """The recipe in a TOML file or packaged under a name; named after its file unless it names itself."""
    path = find_recipe(path)
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"recipe {str(path)!r} cannot be read: {error}") from None
    return recipe_from_dict({"name": path.stem, **values}, overrides)
