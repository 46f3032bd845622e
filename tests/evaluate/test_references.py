import json

import numpy as np
import pytest
from small_references import small_set, some_references

from georoutenet.errors import GeoRouteNetError, InputError
from georoutenet.evaluate.references import PACKAGED, load_references, reference_file
from georoutenet.io.datasets import DATASETS
from research.references.keep import save_references

PACKED = sorted(path.stem for path in PACKAGED.glob("*.npz"))


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("GEOROUTENET_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def data(cache, monkeypatch):
    return small_set(monkeypatch)


@pytest.mark.parametrize("name", PACKED)
def test_packaged_references_are_right(name, cache):
    each, known = DATASETS[name], load_references(name)
    known.check(each.coordinates)  # every tour, not the sample of load_references
    assert known.tours.dtype == (np.uint8 if each.n <= 256 else np.uint16)
    assert (known.tours[:, 0] == 0).all()
    assert (known.tours[:, 1] < known.tours[:, -1]).all()
    assert known.info
    assert all("solver" in entry and entry["instances"] > 0 for entry in known.info)


def test_the_papers_means(cache):
    # The paper prints Concorde's means, 5.6948 and 7.7641.
    assert load_references("val50").mean == pytest.approx(5.6948, abs=5e-5)
    assert load_references("diag100").mean == pytest.approx(7.7641, abs=1e-4)
    assert load_references("val50").proven[:1000].all()


def test_packaged_references_are_small():
    assert sum(path.stat().st_size for path in PACKAGED.glob("*.npz")) < 8 * 2**20


def test_a_damaged_file_is_told(data, tmp_path):
    path = save_references(some_references(data), tmp_path)
    good = path.read_bytes()
    for bad in (b"", b"nonsense", good[: len(good) // 2]):
        path.write_bytes(bad)
        with pytest.raises(GeoRouteNetError, match="not a reference file"):
            load_references("small", tmp_path)
    for offset in range(0, len(good), 97):  # any flipped byte: our own error, or harmless to what is read
        path.write_bytes(good[:offset] + bytes([good[offset] ^ 255]) + good[offset + 1 :])
        try:
            loaded = load_references("small", tmp_path)
        except GeoRouteNetError:
            continue
        loaded.check(data.coordinates)


def test_pickled_arrays_are_refused(data, tmp_path):
    known = some_references(data)
    np.savez(
        reference_file("small", tmp_path),
        tours=known.tours.astype(object),
        lengths=known.lengths,
        proven=known.proven,
        info=np.array(json.dumps([])),
    )
    with pytest.raises(GeoRouteNetError, match="not a reference file"):
        load_references("small", tmp_path)


def test_missing_and_impossible_references(data, tmp_path):
    with pytest.raises(InputError, match="georoutenet reference small"):
        load_references("small", tmp_path)
    with pytest.raises(InputError, match="published optima"):
        load_references("tsplib36")
    with pytest.raises(InputError, match="unknown data set"):
        load_references("val51")
