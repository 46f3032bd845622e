"""The named data sets of the evaluation protocol: made from a seed, cached as files, checked by hash.

>>> from georoutenet.io.datasets import dataset
>>> dataset("val50").coordinates.shape
(10000, 50, 2)
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from pathlib import Path

import numpy as np

from georoutenet.errors import GeoRouteNetError, InputError
from georoutenet.io.atomic import atomic_write
from georoutenet.io.cache import cache_folder
from georoutenet.problem.generate import GENERATORS, Coordinates
from georoutenet.problem.instance import Instance


class Role(StrEnum):
    """What a set may be used for."""

    VALIDATION = "validation"
    """Checkpoints are selected on it, so it is never called a test set."""
    DIAGNOSTIC = "diagnostic"
    """Drawn from the same stream as the validation set, hence correlated with it."""
    HELD_OUT = "held out"
    """Nothing is ever selected on it."""


@dataclass(frozen=True, eq=False)
class Dataset:
    """One named set. The coordinates are made, or read from the cache, when they are first asked for."""

    name: str
    role: Role
    description: str
    generator: str
    """A name in ``georoutenet.problem.generate.GENERATORS``, or ``"tsplib"``."""
    count: int
    n: int | None
    """Cities per instance; None for the TSPLIB sets, whose instances differ in size."""
    seed: int | None = None
    sha256: str = ""

    @property
    def is_random(self) -> bool:
        return self.generator != "tsplib"

    @property
    def cache_file(self) -> Path:
        return cache_folder() / "datasets" / f"{self.name}.npy"

    @cached_property
    def coordinates(self) -> Coordinates:
        """All cities, ``(count, n, 2)`` float32, read-only, checked against ``sha256``."""
        self._require_random()
        coordinates = self._cached()
        if coordinates is None:
            coordinates = self._make()
            if digest(coordinates) != self.sha256:
                raise GeoRouteNetError(
                    f"{self.name}: the generated coordinates have the SHA-256 {digest(coordinates)}, "
                    f"not {self.sha256}; this NumPy or processor does not reproduce the data set"
                )
            with suppress(InputError, OSError):  # a read-only cache folder costs time, nothing else
                self._store(coordinates)
        coordinates.setflags(write=False)
        return coordinates

    def instances(self) -> Iterator[Instance]:
        """The problems one by one: ``name-0``, ``name-1``, ... or the TSPLIB files with their optima."""
        if not self.is_random:
            from georoutenet.io.tsplib import load_tsplib, tsplib_names

            yield from (load_tsplib(name) for name in tsplib_names(self.name))
        else:
            for index, cities in enumerate(self.coordinates):
                yield Instance(cities, name=f"{self.name}-{index}")

    def make(self) -> Path:
        """Write the cache file unless a good one is there; return its path."""
        self._require_random()
        if self._cached() is None:
            self._store(self.coordinates)
        return self.cache_file

    def _require_random(self) -> None:
        if not self.is_random:
            raise InputError(
                f"{self.name} has instances of different sizes: use instances(), not one coordinate array"
            )

    def _make(self) -> Coordinates:
        assert self.n is not None
        assert self.seed is not None
        return GENERATORS[self.generator](self.count, self.n, self.seed)

    def _cached(self) -> Coordinates | None:
        """The cached coordinates, or None when the file is missing or damaged in any way."""
        try:
            coordinates = np.load(io.BytesIO(self.cache_file.read_bytes()), allow_pickle=False)
        except (OSError, ValueError, EOFError):
            return None
        wanted = (self.count, self.n, 2)
        if (
            not isinstance(coordinates, np.ndarray)
            or coordinates.dtype != np.float32
            or coordinates.shape != wanted
        ):
            return None
        return coordinates if digest(coordinates) == self.sha256 else None

    def _store(self, coordinates: Coordinates) -> None:
        with atomic_write(self.cache_file, "wb") as file:
            np.save(file, coordinates, allow_pickle=False)


def digest(coordinates: Coordinates) -> str:
    """SHA-256 of the coordinates as little-endian float32 in C order."""
    return hashlib.sha256(np.ascontiguousarray(coordinates, dtype="<f4").tobytes()).hexdigest()


def dataset(name: str) -> Dataset:
    """The data set of that name, or an error that lists the names."""
    if name not in DATASETS:
        raise InputError(f"unknown data set {name!r}; known: {', '.join(DATASETS)}")
    return DATASETS[name]


def parse_sets(text: str) -> list[str]:
    """Names from a list such as ``val50,test20``; the groups in ``GROUPS`` stand for their sets."""
    names: list[str] = []
    for word in text.split(","):
        for name in GROUPS.get(word.strip(), (word.strip(),)):
            if name not in DATASETS:
                known = ", ".join(DATASETS)
                raise InputError(
                    f"unknown data set {name!r}; known: {known}, and the groups {', '.join(GROUPS)}"
                )
            if name not in names:
                names.append(name)
    return names


_SHAPES = {
    "clustered": "Gaussian clusters",
    "explosion": "a disk blown empty",
    "grid": "crossings of a lattice",
    "ring": "an annulus",
}

# Seeds fit in the 32 bits that torch's generator uses and lie far from the small ones people train with.
_SEEDS = {
    "uniform": 3_141_590_000,
    "clustered": 3_141_610_000,
    "explosion": 3_141_620_000,
    "grid": 3_141_630_000,
    "ring": 3_141_640_000,
    "structure": 3_141_650_000,
    "valstructure": 4_321_000,
    "val": 432_200_000,
}


def _table() -> dict[str, Dataset]:
    sets = [
        Dataset(
            "val50",
            Role.VALIDATION,
            "The paper's validation set: uniform, torch.manual_seed(1234); torch.rand(10000, 50, 2)",
            generator="uniform",
            count=10_000,
            n=50,
            seed=1234,
            sha256=_SHA256["val50"],
        ),
        Dataset(
            "diag100",
            Role.DIAGNOSTIC,
            "The paper's size diagnostic: the generator and seed of val50 at n = 100",
            generator="uniform",
            count=10_000,
            n=100,
            seed=1234,
            sha256=_SHA256["diag100"],
        ),
    ]
    for n, count in {20: 10_000, 50: 10_000, 100: 10_000, 200: 1_000, 500: 128, 1000: 128}.items():
        sets.append(
            Dataset(
                f"test{n}",
                Role.HELD_OUT,
                "Uniform, drawn independently of every other set",
                generator="uniform",
                count=count,
                n=n,
                seed=_SEEDS["uniform"] + n,
                sha256=_SHA256[f"test{n}"],
            )
        )
    for shape, words in _SHAPES.items():
        for n in (50, 100, 200):
            sets.append(
                Dataset(
                    f"{shape}{n}",
                    Role.HELD_OUT,
                    f"Another spatial distribution at fixed size: {words}",
                    generator=shape,
                    count=1_000,
                    n=n,
                    seed=_SEEDS[shape] + n,
                    sha256=_SHA256[f"{shape}{n}"],
                )
            )
    selection = {200: 100, 500: 32, 1000: 16}
    of_structure = "Lattices, repeated patterns, strings, mixtures of densities, and two of them in one"
    for name, role, generator, counts, words in [
        ("structure", Role.HELD_OUT, "structure", {100: 500, 200: 250, 500: 32, 1000: 32}, of_structure),
        ("valstructure", Role.VALIDATION, "structure", selection, of_structure),
        ("val", Role.VALIDATION, "uniform", selection, "Uniform, for selection at larger sizes"),
    ]:
        for n, count in counts.items():
            sets.append(
                Dataset(
                    f"{name}{n}",
                    role,
                    words,
                    generator=generator,
                    count=count,
                    n=n,
                    seed=_SEEDS[name] + n,
                    sha256=_SHA256[f"{name}{n}"],
                )
            )
    for name, count, words in [
        ("tsplib36", 36, "All TSPLIB instances under EUC_2D with 51 to 299 cities"),
        ("tsplib27", 27, "27 of tsplib36 chosen by rule; the paper does not name its own 27"),
        ("tsplib-large", 36, "TSPLIB instances under EUC_2D with 318 to 5,934 cities"),
    ]:
        sets.append(Dataset(name, Role.HELD_OUT, words, generator="tsplib", count=count, n=None))
    return {each.name: each for each in sets}


_SHA256 = {
    "val50": "04330d169ee23ad4ef73074650afcfd1bfaecf2f293628dcc776889ce6f0f7aa",
    "diag100": "3d7b3bb7ff01356425eaed2124102966c3ec5003e0a7fd17ee16e640ff86e161",
    "test20": "21ba5ea5308f1c027d18ca49ed5cf388ab57398f14caf8cfd0ea721bd6c16172",
    "test50": "c46986c1d8924c1f1433cef68318935833c2c2f55a8712f25623c1670f6403fc",
    "test100": "8dd7c121febe7896771626618b3543a03442ff428aa390276e1b217fa08be675",
    "test200": "72d50aa5d4a5ad31b711b9011f95b17220aefbd863239a8f3a327c14cd3729ae",
    "test500": "8b573ace6ad99e130ebb64043ae5629bf2b527d8de01de93f6a93b933967cab8",
    "test1000": "005164be1657af9ce790fa1523575e64d7b90a352cba566c1277513b358d97d4",
    "clustered50": "69460e2322284fe87bb7b8719ee1e93173ff9fe23858f83b5dfac68573bf27d1",
    "clustered100": "0dc645b9f04da7d474c2dde29ffe3fb33883dc3077289af8a4a0d5b398520bfb",
    "clustered200": "e1695d5ae02e1ddf7506dac248330083a1280a6286f3b92f5e9958e517133dc9",
    "explosion50": "4cd9bfba6b01e555274a56f94c19b037d2233b7f06641d2de29eada98d28df9f",
    "explosion100": "fb5fac449430549e43bc7f52dae97cef88796308fd227eecf13287d13e5b800a",
    "explosion200": "36672171600e0d7f33037ecf231a618d7d660f9d618b9b1c0e3704224eef637b",
    "grid50": "b0ac10b6498ef814e565cbc958a2fa8de087f2c16544fd38f7bd8b5c4ba322b4",
    "grid100": "6ffe4aee3501a1e191420162f9b6ca4af809234b5bfbd22a68664cbd7e5d5a09",
    "grid200": "52434f97009c36a465b6d4189eb7a0cf76a6810ae226caa90017de7bd08610d1",
    "ring50": "d9c69a3620dc01c8f337eca83b7e79e7e0e1eb236c946587f18083d5d76b0082",
    "ring100": "b1b9f5b6b9a25d001de507ff1e200a1c7f2981d22e337504c11eb39bfaae48fc",
    "ring200": "00caf90ae6ffdbdaf9d58dcd25b8fe5d88922da27fdb70ae5bd028a71408c0f3",
    "structure100": "b5b5751ec5632ee5a5fdb48404a67837dcb5bdfa9aef9fe0c9d6c53cfe7bfae4",
    "structure200": "25edf175082e544c38df66a8e9e74992063cebda554dfd210b98edf6ce898c86",
    "structure500": "6aa0e48986b3c5318ba39d00bfc24cc6f0fdc6441bae6eaae6dcd98ce61221d9",
    "structure1000": "4716316f76450a3cb963a6c622455f8b190eed740d74c0636eb5b5e645ed8a75",
    "valstructure200": "52b0abf6740d5f69863b3be5a41a31e68873290161f1410501d9a929be954c51",
    "valstructure500": "ad9599e26dcb1a4635e02443e7d223a3cdd402d787b63f5ec509f0a3d42731d3",
    "val200": "689e274af8ac9bad96d30d965ff3e257b18307e2510d5e86bbe3477784acd754",
    "val500": "f71c9e5617b5dc68ed20bb5dd2cfb9c4e1f7b6206a8ffcf1081df0f3f492945d",
    "val1000": "9a59b662f849950066ec9b6b3b2653002daa7516e3f5c56b212b7b03d93a613b",
    "valstructure1000": "231e4b636088b115a5e3eca132968bd9419c594fb6682bb3d7f0d9a331427255",
}

DATASETS = _table()
"""Every data set by name, in the order of the protocol."""

SHIFT = {
    "uniform": {n: f"test{n}" for n in (20, 50, 100, 200, 500, 1000)},
    **{shape: {n: f"{shape}{n}" for n in (50, 100, 200)} for shape in _SHAPES},
}
"""The held-out sets by distribution and size: a change in size, in distribution, or in both."""
GROUPS = {
    "paper": ("val50", "diag100", "tsplib36"),
    "shift": tuple(name for sizes in SHIFT.values() for name in sizes.values()),
    "structure": ("structure100", "structure200", "structure500", "structure1000"),
}
"""Sets that are run together: those of the paper's tables, those of the grid, and those with structure."""
