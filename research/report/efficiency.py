"""What tours cost: latency, runtime and memory of policies and of classical solvers on the same instances.

A file of measurements opens with a line that names the format; then follows one row per set and contender.
What was not measured is empty.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from georoutenet.errors import InputError
from georoutenet.io.atomic import atomic_write

FORMAT = "# georoutenet-efficiency 1"
SOLVER_NAMES = {
    "concorde": "Concorde",
    "lkh": "LKH-3",
    "fast-tsp": "fast-tsp",
    "or-tools": "OR-Tools",
    "pyvrp": "PyVRP",
}


@dataclass(frozen=True)
class Measurement:
    """One contender on the first ``instances`` of one set. Times are wall-clock seconds."""

    set: str
    method: str
    """The paper's name of the model or the solver's."""
    weights: str
    decoder: str
    """The decoder or the solver's settings, in words."""
    instances: int
    gap: float
    gap_low: float
    """Of the 95 % interval; NaN on TSPLIB, whose instances are no sample."""
    gap_high: float
    probe_seconds: float
    """The first instance alone, warm: the mean of three."""
    seconds: float
    """All instances, in batches; solvers take them one by one."""
    network_seconds: float
    decode_seconds: float
    improve_seconds: float
    cpu_seconds: float
    """Of this process while ``seconds`` passed: less than them where one thread had to wait for a core."""
    batch: int
    precision: str
    parameters: int
    peak_device_bytes: float
    device: str
    threads: int
    commit: str
    date: str

    @property
    def instances_per_second(self) -> float:
        return self.instances / self.seconds

    @property
    def instance_seconds(self) -> float:
        """Time per instance: on one thread its processor time, which other programs do not lengthen."""
        alone = self.threads == 1 and math.isnan(self.peak_device_bytes)
        return (self.cpu_seconds if alone else self.seconds) / self.instances

    @property
    def key(self) -> tuple[str, ...]:
        """What tells contenders of one file apart."""
        return (self.set, self.method, self.weights, self.decoder, str(self.instances))


class PaperEfficiency(NamedTuple):
    """A row of the paper's efficiency table; NaN where it gives no number."""

    probe_ms: float
    seconds: float
    instances_per_second: float
    peak_gb: float
    parameters_million: float


@cache
def paper_efficiency() -> dict[tuple[str, str], PaperEfficiency]:
    """The paper's efficiency by set and method; its models are decoded with Beam-1000."""
    text = Path(__file__).with_name("paper_efficiency.csv").read_text(encoding="utf-8")
    return {
        (row["set"], row["method"]): PaperEfficiency(
            *(_number(row[name]) for name in PaperEfficiency._fields)
        )
        for row in csv.DictReader(text.splitlines())
    }


def write_measurements(path: Path, measurements: Sequence[Measurement]) -> None:
    text = io.StringIO()
    text.write(f"{FORMAT}\n")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(field.name for field in fields(Measurement))
    for each in measurements:
        writer.writerow(_cell(getattr(each, field.name)) for field in fields(Measurement))
    with atomic_write(path) as file:
        file.write(text.getvalue())


def _cell(value: str | int | float) -> str:
    if isinstance(value, float):
        return "" if math.isnan(value) else f"{value:.12g}"
    return str(value)


def _number(cell: str) -> float:
    return float(cell or "nan")


def is_measurements(path: Path) -> bool:
    """Whether a file is one of measurements, by its first line."""
    with open(path, "rb") as file:
        return file.readline().rstrip() == FORMAT.encode()


def read_measurements(path: Path) -> list[Measurement]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from None
    names = [field.name for field in fields(Measurement)]
    if len(lines) < 2 or lines[0] != FORMAT or lines[1].split(",") != names:
        raise InputError(f"{path} is not a file of measurements: it does not begin with '{FORMAT}'")
    kinds: dict[str, Callable[[str], Any]] = {
        "str": str,
        "int": int,
        "float": lambda cell: float(cell or "nan"),
    }
    try:
        return [
            Measurement(**{f.name: kinds[str(f.type)](row[f.name]) for f in fields(Measurement)})
            for row in csv.DictReader(lines[1:])
        ]
    except (TypeError, ValueError) as error:
        raise InputError(f"{path}: a damaged row: {error}") from None
