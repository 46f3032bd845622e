"""Reference tours by our own search: shorter ones replace longer ones, proven ones are left alone."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from georoutenet.errors import InputError
from georoutenet.evaluate.references import References, load_references, random_set
from georoutenet.io.datasets import dataset
from georoutenet.problem.tour import tour_lengths
from research.references.keep import unknown
from research.references.search import search


def spoiled() -> tuple[References, References]:
    """Proven references, and the same with the first four tours made longer, the first called proven."""
    best = load_references("test20")
    tours, lengths, proven = best.tours.copy(), best.lengths.copy(), best.proven.copy()
    tours[:4, 3:9] = tours[:4, 3:9][:, [3, 0, 5, 2, 1, 4]]
    lengths[:4] = tour_lengths(random_set("test20").coordinates[:4], tours[:4])
    proven[1:4] = False
    return best, replace(best, tours=tours, lengths=lengths, proven=proven, info=[])


@pytest.mark.parametrize("seconds", [None, 0.05])
def test_longer_tours_are_replaced(seconds: float | None) -> None:
    best, worse = spoiled()
    assert (worse.lengths[:4] > best.lengths[:4]).all()
    found = search(worse, seconds=seconds, first=4)
    np.testing.assert_allclose(found.lengths[1:], best.lengths[1:])
    assert found.lengths[0] == worse.lengths[0]
    assert found.proven.tolist() == worse.proven.tolist()
    assert (found.info[-1]["instances"], found.info[-1]["improved"]) == (3, 3)
    found.check(random_set("test20").coordinates, rows=np.arange(4))


@pytest.mark.parametrize("seconds", [None, 0.02])
def test_a_set_of_which_nothing_is_known(seconds: float | None, monkeypatch: pytest.MonkeyPatch) -> None:
    best, few = load_references("val1000"), 3
    small = replace(dataset("val1000"), count=few)
    monkeypatch.setattr("research.references.keep.random_set", lambda _: small)
    monkeypatch.setattr("research.references.search.random_set", lambda _: small)
    vars(small)["coordinates"] = dataset("val1000").coordinates[:few]
    nothing = unknown("val1000")
    with pytest.raises(InputError, match="no references yet: search all of its 3"):
        search(nothing, first=2)
    found = search(nothing, seconds=seconds)
    assert (found.lengths < 1.1 * best.lengths[:few]).all()
    assert found.info[-1]["settings"] == {"from": "nothing", **({"seconds": seconds} if seconds else {})}
    found.check(small.coordinates)


def test_more_instances_than_there_are() -> None:
    with pytest.raises(InputError, match="cannot take the first 10001"):
        search(load_references("test20"), first=10_001)
