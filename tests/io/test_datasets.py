import os
import subprocess
import sys

import numpy as np
import pytest

from georoutenet.errors import GeoRouteNetError, InputError
from georoutenet.io import datasets
from georoutenet.io.datasets import DATASETS, SHIFT, Dataset, Role, dataset, digest, parse_sets
from georoutenet.problem.generate import uniform

VALIDATION = ["val50", *(f"{name}{n}" for name in ("valstructure", "val") for n in (200, 500, 1000))]
RANDOM = [name for name, each in DATASETS.items() if each.is_random]


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("GEOROUTENET_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def small(**changes):
    """A set of its own, so that tests do not share the coordinates kept in the table's objects."""
    coordinates = uniform(6, 9, 77)
    fields = {
        "name": "small",
        "role": Role.HELD_OUT,
        "description": "for tests",
        "generator": "uniform",
        "count": 6,
        "n": 9,
        "seed": 77,
        "sha256": digest(coordinates),
    }
    return Dataset(**(fields | changes))


def test_every_name_of_the_protocol():
    shapes = [f"{shape}{n}" for shape in ("clustered", "explosion", "grid", "ring") for n in (50, 100, 200)]
    tests = [f"test{n}" for n in (20, 50, 100, 200, 500, 1000)]
    structure = [*(f"structure{n}" for n in (100, 200, 500, 1000)), *VALIDATION[1:]]
    last = ["tsplib36", "tsplib27", "tsplib-large"]
    assert list(DATASETS) == ["val50", "diag100", *tests, *shapes, *structure, *last]


def test_sizes_and_roles():
    def described(name):
        return DATASETS[name].count, DATASETS[name].n, DATASETS[name].role

    assert described("val50") == (10_000, 50, Role.VALIDATION)
    assert described("diag100") == (10_000, 100, Role.DIAGNOSTIC)
    assert [described(f"test{n}")[0] for n in (20, 50, 100, 200, 500, 1000)] == [10_000] * 3 + [
        1_000,
        128,
        128,
    ]
    assert described("ring200") == (1_000, 200, Role.HELD_OUT)
    assert described("structure500") == (32, 500, Role.HELD_OUT)
    assert [name for name in DATASETS if DATASETS[name].role is Role.VALIDATION] == VALIDATION
    assert [name for name in DATASETS if DATASETS[name].role is Role.DIAGNOSTIC] == ["diag100"]


def test_seeds_are_independent():
    seeds = [DATASETS[name].seed for name in RANDOM if name not in ("val50", "diag100")]
    assert len(set(seeds)) == len(seeds)
    assert 1234 not in seeds
    assert len({DATASETS[name].sha256 for name in RANDOM}) == len(RANDOM)


@pytest.mark.parametrize("name", RANDOM)
def test_the_table_holds_the_hash_of_what_is_generated(name):
    each = DATASETS[name]
    coordinates = each._make()
    assert coordinates.shape == (each.count, each.n, 2)
    assert digest(coordinates) == each.sha256


def test_validation_set_is_the_papers():
    torch = pytest.importorskip("torch")
    expected = torch.rand(10_000, 50, 2, generator=torch.Generator().manual_seed(1234)).numpy()
    np.testing.assert_array_equal(DATASETS["val50"]._make(), expected)


def test_coordinates_are_built_cached_and_read_only(cache):
    coordinates = small().coordinates
    np.testing.assert_array_equal(coordinates, uniform(6, 9, 77))
    assert [path.name for path in (cache / "datasets").iterdir()] == ["small.npy"]
    with pytest.raises(ValueError, match="read-only"):
        coordinates[0] = 0


def test_the_cache_is_used(monkeypatch):
    written = small().make()
    monkeypatch.setattr(Dataset, "_make", lambda self: pytest.fail("built although cached"))
    np.testing.assert_array_equal(small().coordinates, np.load(written))
    assert small().make() == written


@pytest.mark.parametrize(
    "damage",
    [
        b"",
        b"not an array",
        lambda good: good[:-1],
        lambda good: good[:-1] + bytes([good[-1] ^ 1]),
        lambda good: good.replace(b"(6, 9, 2)", b"(9, 6, 2)"),
    ],
)
def test_a_damaged_cache_file_is_rebuilt(damage):
    path = small().make()
    good = path.read_bytes()
    path.write_bytes(damage if isinstance(damage, bytes) else damage(good))
    np.testing.assert_array_equal(small().coordinates, uniform(6, 9, 77))
    assert path.read_bytes() == good


def test_a_pickle_in_the_cache_is_never_loaded():
    path = small().cache_file
    path.parent.mkdir(parents=True)
    np.save(path, np.array([{"code": "evil"}], dtype=object), allow_pickle=True)
    np.testing.assert_array_equal(small().coordinates, uniform(6, 9, 77))


def test_a_wrong_hash_is_an_error_and_nothing_is_cached():
    wrong = small(sha256="0" * 64)
    with pytest.raises(GeoRouteNetError, match="does not reproduce"):
        wrong.coordinates  # noqa: B018
    assert not wrong.cache_file.exists()


def test_an_unwritable_cache_does_not_matter(monkeypatch, tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("in the way")
    monkeypatch.setenv("GEOROUTENET_CACHE", str(blocked))
    assert small().coordinates.shape == (6, 9, 2)
    with pytest.raises(InputError):
        small().make()


def test_instances_of_a_random_set():
    instances = list(small().instances())
    assert [instance.name for instance in instances] == [f"small-{index}" for index in range(6)]
    assert instances[3].coordinates.dtype == np.float64
    np.testing.assert_array_equal(instances[3].coordinates, uniform(6, 9, 77)[3].astype(np.float64))


def test_unknown_name():
    with pytest.raises(InputError, match="'val51'; known: val50, diag100"):
        dataset("val51")


@pytest.mark.parametrize("name", ["tsplib36", "tsplib27", "tsplib-large"])
def test_tsplib_counts_are_those_of_the_sets(name):
    from georoutenet.io.tsplib import tsplib_names

    assert dataset(name).count == len(tsplib_names(name))
    with pytest.raises(InputError, match="use instances"):
        dataset(name).coordinates  # noqa: B018
    with pytest.raises(InputError, match="use instances"):
        dataset(name).make()


@pytest.mark.skipif(not os.environ.get("GEOROUTENET_TSPLIB"), reason="GEOROUTENET_TSPLIB is not set")
def test_tsplib_instances():
    instances = list(dataset("tsplib27").instances())
    assert len(instances) == 27
    assert instances[0].name == "eil51"
    assert all(instance.optimum is not None for instance in instances)


def test_importing_the_module_does_not_import_torch():
    code = f"import sys, {datasets.__name__}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_sets_by_name_and_by_group() -> None:
    assert parse_sets("val50") == ["val50"]
    assert parse_sets("test20, paper,val50") == ["test20", "val50", "diag100", "tsplib36"]
    held_out = [each.name for each in DATASETS.values() if each.role is Role.HELD_OUT and each.is_random]
    assert parse_sets("shift,structure") == held_out
    for shape, sizes in SHIFT.items():
        for n, name in sizes.items():
            assert (DATASETS[name].n, DATASETS[name].generator) == (n, shape)
    with pytest.raises(InputError, match=r"unknown data set 'val51'; known: val50, .* groups paper, shift"):
        parse_sets("paper,val51")
