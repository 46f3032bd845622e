"""The settings of a policy: one small dataclass, stored in the header of every weights file."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any

from georoutenet.errors import InputError

ENCODERS = ("georoutenet", "nar4tsp")
UNITS = ("square", "density")
LIMITS = {"hidden": 1024, "heads": 64, "layers": 64, "neighbors": 1024, "rbf": 1024, "reach": 1e6}
"""The largest values: far beyond any use, and small enough that a forged file cannot ask for a model that no
machine holds."""


@dataclass(frozen=True, kw_only=True)
class PolicyConfig:
    """Architecture of a policy. The defaults are the paper's."""

    encoder: str = "georoutenet"
    """``georoutenet`` (geometry-aware) or ``nar4tsp`` (the reference encoder)."""
    hidden: int = 128
    """Feature dimension ``d`` of nodes and edges."""
    heads: int = 8
    layers: int = 6
    neighbors: int = 10
    """``k``: attention reads a city itself and its ``k`` nearest, boundary ties kept."""
    rbf: int = 16
    """Number of radial distance bases (GeoRouteNet only)."""
    unit: str = "square"
    """Unit of the distances: ``square``, the side of the unit square, as in the paper; or ``density``
    (GeoRouteNet only): times ``sqrt(n / 50)``, so that any number of uniform cities look as dense as 50."""
    reach: float = 0.0
    """Distances beyond it, in that unit, count as it (GeoRouteNet only), so that far pairs of large instances
    look like far pairs of small ones; 0, as in the paper: all distances are seen as they are."""

    def __post_init__(self) -> None:
        if self.encoder not in ENCODERS:
            raise InputError(f"unknown encoder {self.encoder!r}; allowed: {', '.join(ENCODERS)}")
        if self.unit not in UNITS:
            raise InputError(f"unknown unit {self.unit!r}; allowed: {', '.join(UNITS)}")
        if self.unit != "square" and self.encoder != "georoutenet":
            raise InputError(
                f"encoder {self.encoder!r} has distances in unit 'square' only, got {self.unit!r}"
            )
        is_number = isinstance(self.reach, int | float) and not isinstance(self.reach, bool)
        if not is_number or not 0 <= self.reach <= LIMITS["reach"]:
            raise InputError(f"reach must be a number from 0 to {LIMITS['reach']:,.0f}, got {self.reach!r}")
        if self.reach and self.encoder != "georoutenet":
            raise InputError(f"encoder {self.encoder!r} has no reach, got {self.reach!r}")
        for name in ("hidden", "heads", "layers", "neighbors", "rbf"):
            value = getattr(self, name)
            least, most = 2 if name == "rbf" else 1, LIMITS[name]
            if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
                raise InputError(f"{name} must be a whole number from {least} to {most}, got {value!r}")
        if self.hidden % self.heads:
            raise InputError(f"hidden ({self.hidden}) must be a multiple of heads ({self.heads})")

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> PolicyConfig:
        if not isinstance(values, dict):
            raise InputError(f"policy settings must be a table, got {values!r}")
        allowed = [field.name for field in fields(cls)]
        unknown = sorted(set(values) - set(allowed))
        if unknown:
            raise InputError(f"unknown policy setting {unknown[0]!r}; allowed: {', '.join(allowed)}")
        return cls(**values)
