import itertools
import os
import stat
import sys
import textwrap

import numpy as np
import pytest

from georoutenet.errors import GeoRouteNetError, InputError, MissingDependencyError
from georoutenet.problem.tour import canonical, tour_lengths
from research.references import solvers
from research.references.solvers import SOLVERS, make_solver, rounded_distances

OPTIONS = {"fast-tsp": {"seconds": 0.2}, "or-tools": {"seconds": 0.2}, "pyvrp": {"seconds": 0.2}}


@pytest.fixture(params=SOLVERS)
def solver(request):
    try:
        return make_solver(request.param, **OPTIONS.get(request.param, {}))
    except MissingDependencyError as error:
        pytest.skip(str(error))


def shortest_by_brute_force(cities):
    n = len(cities)
    tours = np.array([(0, *rest) for rest in itertools.permutations(range(1, n))])
    return tour_lengths(np.asarray(cities, dtype=np.float64)[None], tours[None]).min()


@pytest.mark.parametrize("n", [4, 5, 8])
@pytest.mark.parametrize("scale", [1.0, 1e-6, 1e5])
def test_optimal_on_tiny_instances(solver, n, scale):
    cities = np.random.default_rng(n).random((n, 2)) * scale - 0.3 * scale
    solution = solver.solve(cities, seed=3)
    assert solution.length == pytest.approx(shortest_by_brute_force(cities), rel=1e-9)
    assert solution.length == pytest.approx(tour_lengths(cities[None], solution.tour[None])[0], rel=1e-14)
    np.testing.assert_array_equal(solution.tour, canonical(solution.tour))
    assert solution.proven == (solver.name == "concorde")
    assert solution.settings == solver.settings
    assert solution.seconds > 0


@pytest.mark.parametrize("n", [1, 2, 3])
def test_three_cities_or_fewer_have_one_tour(solver, n):
    cities = np.random.default_rng(n).random((n, 2))
    solution = solver.solve(cities)
    np.testing.assert_array_equal(solution.tour, np.arange(n))
    assert solution.length == pytest.approx(shortest_by_brute_force(cities))
    assert solution.proven


@pytest.mark.parametrize("n", [5, 24])
def test_all_cities_in_one_place(solver, n):
    solution = solver.solve(np.full((n, 2), 0.7))
    assert sorted(solution.tour) == list(range(n))
    assert solution.length == 0.0


def test_many_coincident_cities(solver):
    cities = np.random.default_rng(0).random((24, 2))
    cities[5:] = cities[np.random.default_rng(1).integers(0, 5, 19)]
    solution = solver.solve(cities)
    assert solution.length == pytest.approx(shortest_by_brute_force(cities[:5]), rel=1e-9)


def test_cities_on_a_line(solver):
    cities = np.stack([np.random.default_rng(2).permutation(30) * 3.0, np.zeros(30)], axis=1)
    assert solver.solve(cities).length == pytest.approx(2 * 29 * 3.0)


def test_float32_coordinates_are_measured_in_float64(solver):
    cities = np.random.default_rng(4).random((7, 2)).astype(np.float32)
    assert solver.solve(cities).length == pytest.approx(shortest_by_brute_force(cities), rel=1e-14)


def test_nothing_is_printed_and_no_file_is_left(solver, capfd, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    solver.solve(np.random.default_rng(5).random((60, 2)), seed=1)
    captured = capfd.readouterr()
    assert (captured.out, captured.err) == ("", "")
    assert list(tmp_path.iterdir()) == []
    assert os.getcwd() == str(tmp_path)


def test_bad_input(solver):
    with pytest.raises(InputError, match="row 1"):
        solver.solve([[0.0, 0.0], [np.nan, 1.0], [1.0, 1.0], [0.0, 1.0]])
    with pytest.raises(InputError, match="seed"):
        solver.solve(np.eye(2), seed=-1)


@pytest.mark.parametrize("name", ["concorde", "lkh", "fast-tsp"])
def test_the_strong_solvers_agree(name):
    try:
        exact, other = make_solver("concorde"), make_solver(name, **OPTIONS.get(name, {}))
    except MissingDependencyError as error:
        pytest.skip(str(error))
    cities = np.random.default_rng(8).random((40, 2))
    proven = exact.solve(cities)
    assert proven.proven
    assert other.solve(cities).length == pytest.approx(proven.length, rel=1e-3)
    assert other.solve(cities).length >= proven.length - 40 / exact.SPAN


@pytest.mark.parametrize("name", ["concorde", "lkh"])
def test_the_seed_makes_it_repeatable(name):
    try:
        solver = make_solver(name)
    except MissingDependencyError as error:
        pytest.skip(str(error))
    cities = np.random.default_rng(9).random((80, 2))
    np.testing.assert_array_equal(solver.solve(cities, seed=5).tour, solver.solve(cities, seed=5).tour)


def test_a_proof_for_another_tour_does_not_count():
    # The value that Concorde proves must be the value of the tour that it hands out.
    try:
        solver = make_solver("concorde")
    except MissingDependencyError as error:
        pytest.skip(str(error))

    class Liar:
        _CCutil_gettsplib = staticmethod(solver._extension._CCutil_gettsplib)

        @staticmethod
        def _CCtsp_solve_dat(*arguments):
            tour, value, *rest = solver._extension._CCtsp_solve_dat(*arguments)
            return tour, value - 1, *rest

    cities = np.random.default_rng(3).random((12, 2))
    honest = solver.solve(cities)
    assert honest.proven
    lying = make_solver("concorde")
    lying._extension = Liar
    assert not lying.solve(cities).proven


class TestLkhBinary:
    """A stand-in program checks the files that go in and come out."""

    @pytest.fixture
    def binary(self, tmp_path, monkeypatch):
        def install(body):
            path = tmp_path / "lkh"
            path.write_text(f"#!{sys.executable}\nimport sys\n" + textwrap.dedent(body))
            path.chmod(path.stat().st_mode | stat.S_IXUSR)
            monkeypatch.setenv(solvers.LKH_VARIABLE, str(path))

        return install

    def test_files_in_and_out(self, binary):
        binary("""
            import itertools, math
            keys = dict(line.strip().split(" = ") for line in open(sys.argv[1]))
            assert keys["RUNS"] == "4" and keys["SEED"] == "8"
            head, _, body = open(keys["PROBLEM_FILE"]).read().partition("NODE_COORD_SECTION")
            assert "EDGE_WEIGHT_TYPE : EUC_2D" in head
            rows = [line.split() for line in body.strip().splitlines() if line != "EOF"]
            cities = {int(i): (float(x), float(y)) for i, x, y in rows}
            assert max(max(c) for c in cities.values()) == 1_000_000
            length = lambda t: sum(math.dist(cities[a], cities[b]) for a, b in zip(t, t[1:] + t[:1]))
            best = min(([1, *rest] for rest in itertools.permutations(range(2, len(cities) + 1))), key=length)
            with open(keys["OUTPUT_TOUR_FILE"], "w") as out:
                out.write("NAME : problem.30.tour\\nCOMMENT : Length = 30\\nCOMMENT : Found by LKH-3\\n")
                out.write(f"TYPE : TOUR\\nDIMENSION : {len(best)}\\nTOUR_SECTION\\n")
                out.write("\\n".join(map(str, best)) + "\\n-1\\nEOF\\n")
            print("noise")
        """)
        cities = np.random.default_rng(6).random((7, 2))
        solution = make_solver("lkh", runs=4).solve(cities, seed=7)
        assert solution.length == pytest.approx(shortest_by_brute_force(cities))
        assert solution.settings["build"] == "binary"

    def test_failure_is_told(self, binary):
        binary("sys.exit('*** out of luck')")
        with pytest.raises(GeoRouteNetError, match=r"status 1: \*\*\* out of luck"):
            make_solver("lkh").solve(np.random.default_rng(6).random((7, 2)))

    def test_a_wrong_path_is_told(self, monkeypatch):
        monkeypatch.setenv(solvers.LKH_VARIABLE, "/nowhere/lkh")
        with pytest.raises(InputError, match="/nowhere/lkh"):
            make_solver("lkh")


@pytest.mark.parametrize("name", SOLVERS)
def test_a_missing_solver_gives_the_install_line(name, monkeypatch):
    def missing(module):
        raise ImportError(f"No module named {module!r}")

    monkeypatch.delenv(solvers.LKH_VARIABLE, raising=False)
    monkeypatch.setattr(solvers.importlib, "import_module", missing)
    monkeypatch.setattr(solvers.importlib.util, "find_spec", lambda module: None)
    with pytest.raises(MissingDependencyError, match="pip install"):
        make_solver(name)


def test_unknown_names_and_options():
    with pytest.raises(InputError, match="known: concorde, lkh"):
        make_solver("simplex")
    with pytest.raises(InputError, match="lkh does not take these options"):
        make_solver("lkh", seconds=3)


@pytest.mark.parametrize(
    ("name", "option"), [("lkh", "runs"), ("fast-tsp", "seconds"), ("or-tools", "seconds")]
)
@pytest.mark.parametrize("value", [0, -1, float("nan")])
def test_bad_option_values(name, option, value):
    try:
        make_solver(name)
    except MissingDependencyError as error:
        pytest.skip(str(error))
    with pytest.raises(InputError, match=f"{option} must be a number > 0"):
        make_solver(name, **{option: value})


@pytest.mark.parametrize("largest", [65_535, 10_000_000])
def test_rounded_distances_fit(largest):
    cities = np.random.default_rng(0).random((50, 2)) * 7 - 3
    distances = rounded_distances(cities, largest=largest)
    assert distances.max() == largest
    assert distances.min() == 0
    np.testing.assert_array_equal(distances, distances.T)
    exact = np.linalg.norm(cities[:, None] - cities[None], axis=-1)
    np.testing.assert_allclose(distances, exact * largest / exact.max(), atol=0.5 + 1e-6)
    assert (rounded_distances(np.zeros((4, 2)), largest=largest) == 0).all()
