import dataclasses

import numpy as np
import pytest
from small_references import COUNT, small_set, some_references

from georoutenet.errors import GeoRouteNetError
from georoutenet.evaluate.references import (
    ROUNDING,
    References,
    has_references,
    load_references,
    reference_file,
)
from georoutenet.io.datasets import DATASETS, Dataset, Role, digest
from georoutenet.problem.generate import uniform
from georoutenet.problem.tour import canonical, tour_lengths
from research.references.keep import improve, proof_margin, save_references


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("GEOROUTENET_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def data(cache, monkeypatch):
    return small_set(monkeypatch)


def test_save_and_load(data, tmp_path):
    known = some_references(data)
    path = save_references(known, tmp_path / "out")
    assert path == reference_file("small", tmp_path / "out")
    assert has_references("small", tmp_path / "out")
    loaded = load_references("small", tmp_path / "out")
    assert (loaded.count, loaded.n) == (COUNT, 7)
    assert loaded.tours.dtype == np.uint8
    np.testing.assert_array_equal(loaded.tours, known.tours)
    np.testing.assert_array_equal(loaded.lengths, known.lengths)
    np.testing.assert_array_equal(loaded.proven, known.proven)
    assert loaded.info == [{"solver": "dice"}]
    assert loaded.mean == pytest.approx(known.lengths.mean())


def test_tours_are_stored_in_canonical_form(data, tmp_path):
    known = some_references(data)
    turned = dataclasses.replace(known, tours=np.roll(known.tours[:, ::-1], 2, axis=1))
    save_references(turned, tmp_path)
    np.testing.assert_array_equal(load_references("small", tmp_path).tours, known.tours)


@pytest.mark.parametrize(("n", "dtype"), [(256, np.uint8), (257, np.uint16)])
def test_the_largest_city_fits_its_type(cache, monkeypatch, tmp_path, n, dtype):
    coordinates = uniform(2, n, 5)
    monkeypatch.setitem(
        DATASETS, "wide", Dataset("wide", Role.HELD_OUT, "", "uniform", 2, n, 5, digest(coordinates))
    )
    tours = np.stack([canonical(np.random.default_rng(k).permutation(n)) for k in range(2)])
    known = References("wide", tours, tour_lengths(coordinates, tours), np.zeros(2, dtype=bool))
    save_references(known, tmp_path)
    loaded = load_references("wide", tmp_path)
    assert loaded.tours.dtype == dtype
    np.testing.assert_array_equal(loaded.tours, tours)


def test_saving_wrong_references_is_refused(data, tmp_path):
    known = some_references(data)
    twice = known.tours.copy()
    twice[3, 2] = twice[3, 1]
    for wrong, message in [
        (dataclasses.replace(known, tours=twice), "tour 3 is not a permutation"),
        (
            dataclasses.replace(known, lengths=known.lengths + 1e-6 * (np.arange(COUNT) == 2)),
            "tour 2 has the length",
        ),
        (dataclasses.replace(known, lengths=known.lengths * np.nan), "tour 0 has the length"),
        (dataclasses.replace(known, lengths=known.lengths[:4]), "shapes"),
        (dataclasses.replace(known, proven=known.proven[:4]), "shapes"),
    ]:
        with pytest.raises(GeoRouteNetError, match=message):
            save_references(wrong, tmp_path)
    assert not has_references("small", tmp_path)


def test_improve_takes_the_shorter_tour_and_never_the_longer(data):
    old, new = some_references(data, 0), some_references(data, 1)
    rows = np.array([0, 2, 4])
    better = improve(old, rows, new.tours[rows], np.zeros(3, dtype=bool))
    np.testing.assert_array_equal(better.lengths[rows], np.minimum(old.lengths, new.lengths)[rows])
    np.testing.assert_array_equal(better.lengths[[1, 3]], old.lengths[[1, 3]])
    better.check(data.coordinates)
    assert (new.lengths[rows] < old.lengths[rows]).any()
    assert (new.lengths[rows] > old.lengths[rows]).any()
    old.check(data.coordinates)  # the old ones are not touched


def test_improve_keeps_proofs(data):
    known = some_references(data)
    rows = np.array([1, 3])
    proven = improve(known, rows, known.tours[rows], np.array([True, False]))
    np.testing.assert_array_equal(proven.proven, [False, True, False, False, False])
    again = improve(proven, rows, known.tours[rows], np.array([False, False]))
    np.testing.assert_array_equal(again.proven, proven.proven)


def test_a_contradicted_proof_is_an_error(data):
    a, b = some_references(data, 0), some_references(data, 1)
    row = np.array([0])
    short, long = (a, b) if a.lengths[0] < b.lengths[0] else (b, a)
    with pytest.raises(GeoRouteNetError, match="contradicts"):
        improve(short, row, long.tours[row], np.array([True]))
    proven = improve(long, row, long.tours[row], np.array([True]))
    with pytest.raises(GeoRouteNetError, match="contradicts"):
        improve(proven, row, short.tours[row], np.array([False]))


def test_proof_margin_is_tiny():
    assert proof_margin(50) < 1e-6 * 5.69
    assert proof_margin(20) > ROUNDING
