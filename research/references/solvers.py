"""Classical solvers behind one protocol, each optional: they make the reference tours.

A solver sees the cities scaled to its own integers; the length that comes back is always measured by us in
float64 from the tour on the original coordinates.
"""

from __future__ import annotations

import importlib
import importlib.machinery
import importlib.util
import math
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from georoutenet.errors import GeoRouteNetError, InputError, MissingDependencyError
from georoutenet.io.tsplib_format import format_tsp, parse_tour
from georoutenet.problem.instance import Instance
from georoutenet.problem.tour import Tour, canonical, check_tour, tour_length

Float = NDArray[np.float64]

LKH_VARIABLE = "GEOROUTENET_LKH"


@dataclass(frozen=True, eq=False)
class Solution:
    """A tour in canonical form, its Euclidean length in float64, and how it came about."""

    tour: Tour
    length: float
    seconds: float
    settings: dict[str, Any]
    proven: bool = False
    """No tour is shorter, up to the solver's rounding of each distance (``Concorde.SPAN``)."""


class Solver(ABC):
    """``solve(coordinates)`` gives a :class:`Solution`; the constructor checks that it is installed."""

    name: ClassVar[str]
    settings: dict[str, Any]

    @abstractmethod
    def _search(self, cities: Float, seed: int) -> tuple[ArrayLike, bool]:
        """A tour of at least four cities in the unit square, and whether it is proven optimal."""

    def solve(self, coordinates: ArrayLike, *, seed: int = 0) -> Solution:
        """A short tour through ``coordinates (n, 2)`` under the Euclidean distance."""
        if seed < 0:
            raise InputError(f"a seed is a whole number >= 0, got {seed}")
        instance = Instance(np.asarray(coordinates, dtype=np.float64))
        started = time.perf_counter()
        if instance.n <= 3:  # one tour only, and some solvers refuse it
            order, proven = np.arange(instance.n), True
        else:
            found, proven = self._search(instance.normalized(), seed)
            order = np.asarray(found)
        seconds = time.perf_counter() - started
        tour = canonical(check_tour(order, instance.n))
        return Solution(tour, float(tour_length(instance, tour)), seconds, dict(self.settings), proven)


class FastTsp(Solver):
    """fast-tsp: local search on an integer matrix with entries up to 65,535; no seed."""

    name = "fast-tsp"
    LARGEST = 65_535

    def __init__(self, *, seconds: float = 1.0) -> None:
        self._package = _require("fast_tsp", "fast-tsp", "pip install fast-tsp")
        self.settings = {"seconds": _positive("seconds", seconds), "stop_when_converged": True}

    def _search(self, cities: Float, seed: int) -> tuple[ArrayLike, bool]:
        distances = rounded_distances(cities, largest=self.LARGEST).astype(np.uint16)
        tour = self._package.find_tour(
            distances, self.settings["seconds"], max_threads=1, stop_when_converged=True
        )
        return tour, False


class Lkh(Solver):
    """LKH-3: the binary named by ``$GEOROUTENET_LKH``, else the one inside the elkai wheel.

    LKH cuts distances to whole numbers, so the unit square becomes a square of side ``SPAN`` first. LKH
    multiplies distances by 100 and keeps them in 32 bits, so ``SPAN`` has to stay well below 10**7.
    """

    name = "lkh"
    SPAN = 1_000_000

    def __init__(self, *, runs: int = 1) -> None:
        binary = os.environ.get(LKH_VARIABLE)
        self._binary = _executable(binary) if binary else None
        if self._binary is None:
            self._elkai = _require("elkai._elkai", "LKH", f"pip install elkai (or set ${LKH_VARIABLE})")
        self.settings = {
            "runs": int(_positive("runs", runs)),
            "span": self.SPAN,
            "build": "binary" if self._binary else "elkai",
        }

    def _search(self, cities: Float, seed: int) -> tuple[ArrayLike, bool]:
        problem = format_tsp(Instance(cities), scale=self.SPAN)
        parameters = f"RUNS = {self.settings['runs']}\nSEED = {seed % 2**31 + 1}\n"
        if self._binary is None:
            tour = self._elkai.solve_problem(parameters + "PROBLEM_FILE = :stdin:\n", problem)
            return np.asarray(tour, dtype=np.int64) - 1, False
        return _run_lkh(self._binary, parameters, problem), False


class Concorde(Solver):
    """Concorde, exact: the compiled extension inside the ml4co-kit wheel, loaded without that package.

    Distances are rounded to 1 / ``SPAN`` of the larger side of the bounding box, ten times finer than the
    paper's scaling, so a proven tour is optimal up to ``n / SPAN`` of that side.
    """

    name = "concorde"
    SPAN = 10_000_000

    def __init__(self) -> None:
        self._extension = _load_concorde()
        self.settings = {"span": self.SPAN}

    def _search(self, cities: Float, seed: int) -> tuple[ArrayLike, bool]:
        with _scratch_folder_and_silence():
            Path("problem.tsp").write_text(format_tsp(Instance(cities), scale=self.SPAN))
            n, data = self._extension._CCutil_gettsplib("problem.tsp")
            # Seed 0 means "the time of day" to the extension; a time limit of -1 means none.
            tour, value, success, found, _ = self._extension._CCtsp_solve_dat(
                n, data, "problem", -1.0, 1, seed % (2**31 - 1) + 1
            )
        if not found:
            raise GeoRouteNetError("Concorde ended without a tour")
        ends = (cities * self.SPAN)[tour] - (cities * self.SPAN)[np.roll(tour, -1)]
        # The proof counts only when the tour handed out is the one whose value was proven.
        agrees = np.floor(np.hypot(ends[:, 0], ends[:, 1]) + 0.5).sum() == value
        return tour, bool(success and agrees)


class OrTools(Solver):
    """OR-Tools routing: path-cheapest-arc, then guided local search until the time is up; no seed."""

    name = "or-tools"
    LARGEST = 10_000_000

    def __init__(self, *, seconds: float = 1.0) -> None:
        install = "pip install ortools"
        self._routing = _require("ortools.constraint_solver.pywrapcp", "OR-Tools", install)
        self._enums = _require("ortools.constraint_solver.routing_enums_pb2", "OR-Tools", install)
        self.settings = {"seconds": _positive("seconds", seconds), "largest": self.LARGEST}

    def _search(self, cities: Float, seed: int) -> tuple[ArrayLike, bool]:
        return self.search_matrix(rounded_distances(cities, largest=self.LARGEST)), False

    def search_matrix(self, distances: NDArray[np.int64]) -> list[int]:
        """A tour under whole-number distances ``(n, n)``."""
        manager = self._routing.RoutingIndexManager(len(distances), 1, 0)
        model = self._routing.RoutingModel(manager)
        model.SetArcCostEvaluatorOfAllVehicles(model.RegisterTransitMatrix(distances.tolist()))
        parameters = self._routing.DefaultRoutingSearchParameters()
        parameters.first_solution_strategy = self._enums.FirstSolutionStrategy.PATH_CHEAPEST_ARC
        parameters.local_search_metaheuristic = self._enums.LocalSearchMetaheuristic.GUIDED_LOCAL_SEARCH
        parameters.time_limit.FromMilliseconds(max(1, round(1000 * self.settings["seconds"])))
        assignment = model.SolveWithParameters(parameters)
        if assignment is None:
            raise GeoRouteNetError(
                f"OR-Tools found no tour in {self.settings['seconds']} s; allow more seconds"
            )
        tour, index = [], model.Start(0)
        while not model.IsEnd(index):
            tour.append(manager.IndexToNode(index))
            index = assignment.Value(model.NextVar(index))
        return tour


class PyVrp(Solver):
    """PyVRP: one vehicle without capacity, iterated local search until the time is up."""

    name = "pyvrp"
    LARGEST = 10_000_000

    def __init__(self, *, seconds: float = 1.0) -> None:
        self._pyvrp = _require("pyvrp", "PyVRP", "pip install 'pyvrp>=0.14'")
        if not hasattr(self._pyvrp, "Location"):
            raise MissingDependencyError("PyVRP is too old; update it with: pip install 'pyvrp>=0.14'")
        self.settings = {"seconds": _positive("seconds", seconds), "largest": self.LARGEST}

    def _search(self, cities: Float, seed: int) -> tuple[ArrayLike, bool]:
        return self.search_matrix(rounded_distances(cities, largest=self.LARGEST), seed), False

    def search_matrix(self, distances: NDArray[np.int64], seed: int = 0) -> list[int]:
        """A tour under whole-number distances ``(n, n)``; the solver does not look at coordinates."""
        pyvrp = self._pyvrp
        data = pyvrp.ProblemData(
            locations=[pyvrp.Location(0, 0)] * len(distances),
            clients=[pyvrp.Client(location=city) for city in range(1, len(distances))],
            depots=[pyvrp.Depot(location=0)],
            vehicle_types=[pyvrp.VehicleType()],
            distance_matrices=[distances],
            duration_matrices=[np.zeros_like(distances)],
        )
        result = pyvrp.solve(
            data, pyvrp.stop.MaxRuntime(self.settings["seconds"]), seed=seed % 2**32, collect_stats=False
        )
        route = result.best.routes()[0]
        # Clients are counted from 0 in a list of their own, so client c is city c + 1.
        return [0, *(stop.idx + 1 for stop in route if stop.is_client())]


SOLVERS: dict[str, type[Solver]] = {
    solver.name: solver for solver in (Concorde, Lkh, FastTsp, OrTools, PyVrp)
}


def make_solver(name: str, **options: Any) -> Solver:
    """The solver of that name with its options, or an error that lists what is allowed."""
    if name not in SOLVERS:
        raise InputError(f"unknown solver {name!r}; known: {', '.join(SOLVERS)}")
    try:
        return SOLVERS[name](**options)
    except TypeError as error:
        raise InputError(f"{name} does not take these options: {error}") from None


def rounded_distances(cities: Float, *, largest: int) -> NDArray[np.int64]:
    """The distance matrix scaled so that its greatest entry is ``largest``, rounded to whole numbers."""
    distances = Instance(cities).distance_matrix()
    greatest = distances.max()
    scale = largest / greatest if greatest > 0 else 0.0
    return np.minimum(np.rint(distances * scale), largest).astype(np.int64)


def _positive(name: str, value: float) -> float:
    if not (math.isfinite(value) and value > 0):
        raise InputError(f"{name} must be a number > 0, got {value}")
    return value


def _require(module: str, product: str, install: str) -> ModuleType:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingDependencyError(
            f"{product} is not installed ({error}); install it with: {install}"
        ) from None


def _executable(name: str) -> str:
    path = shutil.which(name)
    if path is None:
        raise InputError(f"${LKH_VARIABLE} names {name!r}, which is not an executable file")
    return os.path.abspath(path)


def _run_lkh(binary: str, parameters: str, problem: str) -> list[int]:
    """The tour that a stand-alone LKH writes for a problem."""
    with tempfile.TemporaryDirectory(prefix="georoutenet-lkh-") as folder:
        Path(folder, "problem.tsp").write_text(problem)
        Path(folder, "problem.par").write_text(
            f"PROBLEM_FILE = problem.tsp\nOUTPUT_TOUR_FILE = problem.tour\n{parameters}"
        )
        ended = subprocess.run(
            [binary, "problem.par"], cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, check=False
        )
        written = Path(folder, "problem.tour")
        if ended.returncode != 0 or not written.exists():
            words = (ended.stderr or ended.stdout).decode(errors="replace").strip().splitlines()
            raise GeoRouteNetError(f"{binary} failed with status {ended.returncode}: {' '.join(words[-1:])}")
        return parse_tour(written.read_text(), "the tour that LKH wrote")


def _load_concorde() -> ModuleType:
    """The extension module alone: importing ml4co_kit itself would need torch and a dozen packages."""
    package = importlib.util.find_spec("ml4co_kit")
    folders = list(package.submodule_search_locations or []) if package else []
    for folder in folders:
        for suffix in importlib.machinery.EXTENSION_SUFFIXES:
            path = Path(folder, "solver/routing/lib/concorde/pyconcorde/concorde", f"_concorde{suffix}")
            if path.exists():
                spec = importlib.util.spec_from_file_location("_concorde", path)
                assert spec is not None
                assert spec.loader is not None
                module = importlib.util.module_from_spec(spec)
                spec.loader.exec_module(module)
                return module
    raise MissingDependencyError(
        "Concorde is not installed; install it with: pip install --no-deps ml4co-kit (academic use only)"
    )


_PROCESS_STATE = threading.Lock()


@contextmanager
def _scratch_folder_and_silence() -> Iterator[None]:
    """Work in a temporary folder with stdout and stderr closed off at the level of the operating system.

    Concorde prints, and leaves files in the current folder. Both belong to the whole process, so only one
    thread at a time may do this.
    """
    with _PROCESS_STATE, tempfile.TemporaryDirectory(prefix="georoutenet-concorde-") as folder:
        sys.stdout.flush()
        sys.stderr.flush()
        back = os.open(".", os.O_RDONLY)
        kept = [(stream, os.dup(stream)) for stream in (1, 2)]
        nothing = os.open(os.devnull, os.O_WRONLY)
        try:
            os.chdir(folder)
            for stream, _ in kept:
                os.dup2(nothing, stream)
            yield
        finally:
            for stream, copy in kept:
                os.dup2(copy, stream)
                os.close(copy)
            os.close(nothing)
            os.fchdir(back)
            os.close(back)
