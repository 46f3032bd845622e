import io
import itertools
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from georoutenet.errors import GeoRouteNetError, InputError, MissingDependencyError
from georoutenet.evaluate.references import References, load_references
from georoutenet.io.datasets import DATASETS, Dataset, Role, digest
from georoutenet.problem.generate import uniform
from georoutenet.problem.tour import canonical, tour_lengths
from research.references import make as module
from research.references.keep import save_references
from research.references.make import Pass, make_references
from research.references.solvers import SOLVERS, Solver, make_solver

COUNT, N = 8, 6


class Exhaustive(Solver):
    """Tries every tour; proves it. Stands in for the optional solvers."""

    name = "exhaustive"

    def __init__(self, *, level: int = 1) -> None:
        self.settings = {"level": level}

    def _search(self, cities, seed):
        tours = np.array([(0, *rest) for rest in itertools.permutations(range(1, len(cities)))])
        return tours[tour_lengths(cities[None], tours[None])[0].argmin()], True


class Sloppy(Solver):
    """The cities in their own order."""

    name = "sloppy"

    def __init__(self) -> None:
        self.settings = {}

    def _search(self, cities, seed):
        return np.arange(len(cities)), False


class InThisProcess:
    """Stands in for the process pool: stand-in solvers are not known in other processes."""

    def __init__(self, **options):
        pass

    def submit(self, function, *arguments):
        from concurrent.futures import Future

        future = Future()
        try:
            future.set_result(function(*arguments))
        except Exception as error:
            future.set_exception(error)
        return future

    def shutdown(self, **options):
        pass


@pytest.fixture
def data(tmp_path, monkeypatch):
    monkeypatch.setenv("GEOROUTENET_CACHE", str(tmp_path / "cache"))
    coordinates = uniform(COUNT, N, 5)
    small = Dataset("small", Role.HELD_OUT, "for tests", "uniform", COUNT, N, 5, digest(coordinates))
    monkeypatch.setitem(DATASETS, "small", small)
    monkeypatch.setitem(SOLVERS, "exhaustive", Exhaustive)
    monkeypatch.setitem(SOLVERS, "sloppy", Sloppy)
    monkeypatch.setattr(module, "ProcessPoolExecutor", InThisProcess)
    monkeypatch.setattr(module, "_chunks", _small_chunks)
    return small


_real_chunks = module._chunks


def _small_chunks(data, each, known):
    """Chunks of two or three instances instead of all eight in one."""
    pieces = []
    for chunk in _real_chunks(data, each, known):
        for index, rows in enumerate(np.array_split(chunk.rows, 3)):
            if len(rows):
                pieces.append(module._Chunk(each, chunk.path.with_name(f"{index}.npz"), rows))
    return pieces


def optimal_lengths(data):
    return np.array([Exhaustive().solve(cities).length for cities in data.coordinates])


def test_all_instances_are_solved_and_stored(data, tmp_path):
    seen = []
    made = make_references(
        data, [Pass("exhaustive")], folder=tmp_path, progress=lambda done, total: seen.append((done, total))
    )
    np.testing.assert_allclose(made.lengths, optimal_lengths(data), rtol=1e-14)
    assert made.proven.all()
    assert seen[0] == (0, COUNT)
    assert seen[-1] == (COUNT, COUNT)
    assert seen == sorted(seen)
    (entry,) = made.info
    assert (entry["solver"], entry["settings"], entry["instances"]) == ("exhaustive", {"level": 1}, COUNT)
    np.testing.assert_array_equal(load_references("small", tmp_path).tours, made.tours)
    assert not list((tmp_path / "cache" / "reference-jobs").iterdir())  # the chunks are gone


def test_several_solvers_the_shorter_tour_counts(data, tmp_path):
    made = make_references(data, [Pass("sloppy"), Pass("exhaustive", first=3)], folder=tmp_path)
    in_order = tour_lengths(data.coordinates, np.tile(np.arange(N), (COUNT, 1)))
    np.testing.assert_allclose(made.lengths[3:], in_order[3:], rtol=1e-14)
    np.testing.assert_allclose(made.lengths[:3], optimal_lengths(data)[:3], rtol=1e-14)
    np.testing.assert_array_equal(made.proven, np.arange(COUNT) < 3)
    assert [entry["solver"] for entry in made.info] == ["sloppy", "exhaustive"]


def test_known_references_are_improved_never_worsened(data, tmp_path):
    first = make_references(data, [Pass("sloppy"), Pass("exhaustive", first=3)], folder=tmp_path)
    worse = make_references(data, [Pass("sloppy")], folder=tmp_path)
    np.testing.assert_array_equal(worse.lengths, first.lengths)
    assert worse.info[-1]["improved"] == 0
    assert worse.info[-1]["instances"] == COUNT - 3  # the proven ones are left out
    better = make_references(data, [Pass("exhaustive")], folder=tmp_path)
    assert (better.lengths <= first.lengths).all()
    assert better.proven.all()
    np.testing.assert_allclose(better.lengths, optimal_lengths(data), rtol=1e-14)


def test_nothing_left_to_do(data, tmp_path):
    made = make_references(data, [Pass("exhaustive")], folder=tmp_path)
    again = make_references(data, [Pass("exhaustive")], folder=tmp_path)
    np.testing.assert_array_equal(again.tours, made.tours)
    assert again.info == made.info


def test_another_folder_starts_from_the_packaged_references(data, tmp_path, monkeypatch):
    tours = np.stack([canonical(Exhaustive().solve(cities).tour) for cities in data.coordinates])
    packaged = References("small", tours, tour_lengths(data.coordinates, tours), np.zeros(COUNT, dtype=bool))
    save_references(packaged, tmp_path / "packaged")
    before = (tmp_path / "packaged" / "small.npz").read_bytes()
    monkeypatch.setattr(module, "PACKAGED", tmp_path / "packaged")
    made = make_references(data, [Pass("sloppy", first=2)], folder=tmp_path / "out")
    np.testing.assert_array_equal(made.lengths, packaged.lengths)
    assert (tmp_path / "packaged" / "small.npz").read_bytes() == before


def test_a_job_that_finished_meanwhile_is_not_overwritten(data, tmp_path):
    def meanwhile(done, total):
        if done == total:
            make_references(data, [Pass("exhaustive")], folder=tmp_path)

    made = make_references(data, [Pass("sloppy")], folder=tmp_path, progress=meanwhile)
    np.testing.assert_allclose(made.lengths, optimal_lengths(data), rtol=1e-14)
    assert made.proven.all()


def test_a_failed_job_resumes_with_the_chunks_it_has(data, tmp_path, monkeypatch):
    calls = []

    def failing(self, cities, seed):
        calls.append(seed)
        if seed == 4:
            raise GeoRouteNetError("stop")
        return Exhaustive()._search(cities, seed)

    monkeypatch.setattr(Sloppy, "_search", failing)
    with pytest.raises(GeoRouteNetError, match="stop"):
        make_references(data, [Pass("sloppy")], folder=tmp_path)
    assert not (tmp_path / "small.npz").exists()
    finished = {0, 1, 2, 6, 7}  # chunks 0-2, 3-5, 6-7; the middle one failed
    calls.clear()
    monkeypatch.setattr(
        Sloppy, "_search", lambda self, c, seed: calls.append(seed) or Exhaustive()._search(c, seed)
    )
    made = make_references(data, [Pass("sloppy")], folder=tmp_path)
    assert set(calls) == set(range(COUNT)) - finished
    np.testing.assert_allclose(made.lengths, optimal_lengths(data), rtol=1e-14)


def test_damaged_chunks_and_other_settings_are_not_used(data, tmp_path):
    each = Pass("exhaustive")
    for chunk in module._chunks(data, each, None):
        chunk.path.parent.mkdir(parents=True, exist_ok=True)
        chunk.path.write_bytes(b"damaged")
        assert module._read(chunk) is None
    assert module._job_folder(data, each) != module._job_folder(data, Pass("exhaustive", {"level": 2}))
    made = make_references(data, [each], folder=tmp_path)
    np.testing.assert_allclose(made.lengths, optimal_lengths(data), rtol=1e-14)


def test_bad_arguments(data, tmp_path):
    with pytest.raises(InputError, match="workers must be >= 1, got 0"):
        make_references(data, [Pass("sloppy")], workers=0, folder=tmp_path)
    with pytest.raises(InputError, match="unknown solver"):
        make_references(data, [Pass("simplex")], folder=tmp_path)
    with pytest.raises(InputError, match="first 9"):
        make_references(data, [Pass("sloppy", first=9)], folder=tmp_path)
    with pytest.raises(InputError, match="cover all 8"):
        make_references(data, [Pass("sloppy", first=7)], folder=tmp_path)


ROOT = Path(__file__).parents[3]
JOB = """
from pathlib import Path
from georoutenet.io.datasets import DATASETS, Dataset, Role, digest
from research.references.make import Pass, make_references
from georoutenet.problem.generate import uniform

if __name__ == "__main__":
    sha256 = digest(uniform(300, 100, 5))
    data = DATASETS["small"] = Dataset("small", Role.HELD_OUT, "", "uniform", 300, 100, 5, sha256)
    made = make_references(data, [Pass("fast-tsp", {"seconds": 0.02})], workers=2, folder=Path("out"))
    print("finished", made.count)
"""


def children(pid):
    """Process ids of the children, from the kernel's table."""
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                with open(f"/proc/{entry}/stat") as file:
                    fields = file.read().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[1]) == pid and fields[0] != "Z":
                found.append(int(entry))
    return found


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="needs Linux's /proc")
def test_kill_minus_nine_and_resume(tmp_path):
    try:
        make_solver("fast-tsp")
    except MissingDependencyError as error:
        pytest.skip(str(error))
    (tmp_path / "job.py").write_text(JOB)
    environment = os.environ | {"GEOROUTENET_CACHE": str(tmp_path / "cache"), "OMP_NUM_THREADS": "1"}
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "job.py"]
    jobs = tmp_path / "cache" / "reference-jobs"

    def chunk_files():
        return {path: path.stat().st_mtime_ns for path in jobs.glob("*/[0-9]*.npz")}

    process = subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE)
    deadline = time.monotonic() + 60
    while len(chunk_files()) < 2 and time.monotonic() < deadline and process.poll() is None:
        time.sleep(0.02)
    workers = children(process.pid)
    process.send_signal(signal.SIGKILL)
    process.wait()
    kept = chunk_files()
    assert 2 <= len(kept) < 6
    assert workers
    assert not (tmp_path / "out" / "small.npz").exists()

    deadline = time.monotonic() + 30
    while any(os.path.exists(f"/proc/{pid}") for pid in workers) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not [pid for pid in workers if os.path.exists(f"/proc/{pid}")]  # no orphans

    before = {path: path.read_bytes() for path in chunk_files()}
    resumed = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert resumed.stdout.strip() == "finished 300", resumed.stderr
    with np.load(tmp_path / "out" / "small.npz", allow_pickle=False) as stored:
        assert stored["tours"].shape == (300, 100)
        lengths = tour_lengths(uniform(300, 100, 5), stored["tours"])
        # What was finished before the kill was taken over, not computed again.
        for contents in before.values():
            with np.load(io.BytesIO(contents), allow_pickle=False) as chunk:
                np.testing.assert_array_equal(stored["tours"][chunk["rows"]], chunk["tours"])
    assert lengths.mean() == pytest.approx(7.77, abs=0.15)
    assert not chunk_files()
