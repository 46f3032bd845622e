"""``BulkSolver``, as pipelines of others call it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from made import random_cities, solved, wide

import georoutenet as grn
from georoutenet.bulk import BulkSolver
from georoutenet.errors import InputError
from georoutenet.problem.instance import Instance
from georoutenet.solver.many_gpu import Searched
from georoutenet.solver.options import SolveOptions

CITIES = random_cities(5, least=4)
COLUMNS = ["id", "n", "tour", "length", "method", "error"]


def test_a_table() -> None:
    found = BulkSolver(seed=2)(wide(["a", "b", "c", "d", "e"], CITIES))
    assert found.column_names == COLUMNS
    assert found.column("id").to_pylist() == ["a", "b", "c", "d", "e"]
    assert (found.column("tour").to_pylist(), found.column("length").to_pylist()) == solved(CITIES, seed=2)


def test_a_table_in_chunks_is_numbered_through() -> None:
    table = wide([1] * 5, CITIES).drop_columns("id")
    pieces = pa.concat_tables([table.slice(0, 2), table.slice(2)])
    assert BulkSolver()(pieces).column("id").to_pylist() == [0, 1, 2, 3, 4]
    batch = table.combine_chunks().to_batches()[0]
    found = BulkSolver()(batch)
    assert isinstance(found, pa.RecordBatch)
    assert found.column("tour").to_pylist() == solved(CITIES)[0]


def test_a_batch_without_rows() -> None:
    batch = pa.RecordBatch.from_pylist([], schema=wide(["a"], CITIES[:1]).schema)
    found = BulkSolver()(batch)
    assert isinstance(found, pa.RecordBatch)
    assert (found.num_rows, found.schema.names) == (0, COLUMNS)


def test_a_table_with_one_row_per_city() -> None:
    rows = [(k, *city) for k, one in enumerate(CITIES) for city in one]
    table = pa.table(dict(zip(("id", "x", "y"), zip(*rows, strict=True), strict=True)))
    assert BulkSolver()(table).column("tour").to_pylist() == solved(CITIES)[0]


def arrays(cities: Any) -> Any:
    """As Ray hands over columns of lists of different lengths."""
    made = np.empty(len(cities), dtype=object)
    made[:] = [np.array(one) for one in cities]
    return made


def test_columns_of_arrays() -> None:
    x, y = (arrays([[city[axis] for city in one] for one in CITIES]) for axis in (0, 1))
    found = BulkSolver(lower_bound=True)({"id": np.arange(5), "x": x, "y": y})
    assert list(found) == [*COLUMNS[:4], "lower_bound", *COLUMNS[4:]]
    assert [tour.tolist() for tour in found["tour"]] == solved(CITIES)[0]
    assert found["length"].tolist() == solved(CITIES)[1]
    assert found["id"].tolist() == [0, 1, 2, 3, 4]


def test_points_as_one_array() -> None:
    points = np.random.default_rng(0).random((3, 6, 2))
    for given in (points, arrays(points)):
        found = BulkSolver()({"points": given})
        assert [tour.tolist() for tour in found["tour"]] == solved(points.tolist())[0]


def test_a_frame_of_pandas() -> None:
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    x, y = ([[city[axis] for city in one] for one in CITIES] for axis in (0, 1))
    found = BulkSolver()(pandas.DataFrame({"id": list("abcde"), "x": x, "y": y}))
    assert list(found.columns) == COLUMNS
    assert [list(tour) for tour in found["tour"]] == solved(CITIES)[0]


def test_errors_have_no_tour() -> None:
    found = BulkSolver()({"id": ["a", "b"], "x": [[0.0, 1.0], [np.nan]], "y": [[0.0, 1.0], [0.0]]})
    assert found["tour"][0].tolist() == [0, 1]
    assert found["tour"][1] is None
    assert found["error"][0] is None
    assert "coordinates must be finite" in found["error"][1]


def test_what_gpus_search(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of all sizes together, those of too few cities and with errors apart; here the CPU searches."""
    cities = random_cities(60, least=1, most=9)

    def on_cpu(instances: Sequence[Instance], options: SolveOptions) -> Iterator[Searched]:
        positions = [k for k, each in enumerate(instances) if each.n > max(4, int(options.start or 0))]
        found = grn.solve_many([instances[k] for k in positions], device="cpu", start=options.start)
        tours = np.zeros((len(found), 9), dtype=np.int64)
        for row, result in zip(tours, found, strict=True):
            row[: result.instance.n] = result.tour
        lengths = np.array([float(result.length) for result in found])
        kicks, all_ = lengths.astype(np.int64), np.ones(len(lengths), dtype=np.bool_)
        yield Searched(positions, tours, lengths, lengths, kicks, all_, "curve", 1.0, False)

    monkeypatch.setattr("georoutenet.solver.many_gpu.search_many", on_cpu)
    monkeypatch.setattr("georoutenet.solver.stages.gpu_possible", lambda name: False)
    monkeypatch.setattr("georoutenet.solver.api.gpu_possible", lambda name: False)
    found = BulkSolver(device="cuda", start=0)(wide(list(range(60)), cities))
    assert found.column("tour").to_pylist() == solved(cities, start=0)[0]
    by_gpu = [method == "curve" for method in found.column("method").to_pylist()]
    assert by_gpu == [len(one) >= 5 for one in cities]
    errors = BulkSolver(device="cuda", start=5)(wide([1, 2], [CITIES[0][:5], CITIES[0][:3]])).column("error")
    assert all("start" in error for error in errors.to_pylist())
    for options in ({"max_seconds": 1}, {"lower_bound": True}, {"improve": False}):
        assert not BulkSolver(device="cuda", **options).on_gpu  # type: ignore[arg-type]


def test_bounds_are_not_lost_to_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("georoutenet.solver.api.gpu_possible", lambda name: True)
    monkeypatch.setattr("georoutenet.solver.stages.gpu_possible", lambda name: False)
    monkeypatch.setattr("georoutenet.solver.many_gpu.search_many", lambda *_: pytest.fail("asked"))
    found = BulkSolver(lower_bound=True)(wide(list("abcde"), CITIES))
    assert None not in found.column("lower_bound").to_pylist()


def test_batches_that_are_refused() -> None:
    with pytest.raises(InputError, match=r"a batch is a dictionary of columns, .* got list"):
        BulkSolver()([1, 2])
    with pytest.raises(InputError, match="the batch: the header must name x,y"):
        BulkSolver()({"id": [1]})
    with pytest.raises(InputError, match="the batch: the column 'x' cannot be read"):
        BulkSolver()({"id": [1, 2], "x": [[1.0], "text"], "y": [[1.0], [2.0]]})
    with pytest.raises(InputError, match="BulkSolver has no option 'speed'"):
        BulkSolver(speed=1)  # type: ignore[call-arg]
