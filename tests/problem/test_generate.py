import hashlib

import numpy as np
import pytest

from georoutenet.errors import InputError
from georoutenet.problem.generate import GENERATORS, uniform

clustered, explosion, grid = (GENERATORS[name] for name in ("clustered", "explosion", "grid"))
rectangle, ring, turned = (GENERATORS[name] for name in ("rectangle", "ring", "turned"))

DIGESTS = {
    "uniform": "2754c121f0d84cf0",
    "clustered": "fc14b54cede0f6fd",
    "explosion": "b1c3bb21d7e7db8e",
    "grid": "c93008bfcc089ab9",
    "ring": "e95ec211cf64cb89",
    "rectangle": "a39e8aa92924a04f",
    "turned": "ca097a5e50cc823c",
    "lattice": "51076ab1dbb53b65",
    "patterns": "47d7f56d136deb06",
    "strings": "58d543635c4f54f4",
    "mixture": "6a033a867be032b2",
    "structure": "bd19fc05db43752b",
}
OTHERS = [name for name in GENERATORS if name != "uniform"]
STRUCTURED = ["lattice", "patterns", "strings", "mixture", "structure"]


@pytest.mark.parametrize("seed", [0, 1, 1234, 2**31, 2**32 - 1])
@pytest.mark.parametrize(("count", "n"), [(1, 1), (3, 7), (40, 50), (0, 5)])
def test_uniform_is_bit_identical_to_torch(count, n, seed):
    torch = pytest.importorskip("torch")
    torch.manual_seed(seed)
    expected = torch.rand(count, n, 2).numpy()
    private = torch.rand(count, n, 2, generator=torch.Generator().manual_seed(seed)).numpy()
    np.testing.assert_array_equal(uniform(count, n, seed).view(np.uint32), expected.view(np.uint32))
    np.testing.assert_array_equal(private, expected)


def test_uniform_prefix_of_the_stream():
    # A smaller count is the beginning of a larger one, so that instance i of a set never changes.
    np.testing.assert_array_equal(uniform(5, 50, 9), uniform(20, 50, 9)[:5])


@pytest.mark.parametrize("name", GENERATORS)
@pytest.mark.parametrize(("count", "n"), [(1, 1), (4, 2), (5, 37), (0, 3)])
def test_shape_type_and_unit_square(name, count, n):
    coordinates = GENERATORS[name](count, n, 3)
    assert coordinates.shape == (count, n, 2)
    assert coordinates.dtype == np.float32
    assert ((coordinates >= 0) & (coordinates <= 1)).all()


@pytest.mark.parametrize("name", GENERATORS)
def test_seed_decides(name):
    first = GENERATORS[name](6, 30, 11)
    np.testing.assert_array_equal(first, GENERATORS[name](6, 30, 11))
    assert not np.array_equal(first, GENERATORS[name](6, 30, 12))
    assert not np.array_equal(first[0], first[1])


@pytest.mark.parametrize("name", OTHERS)
def test_coordinates_are_multiples_of_two_to_the_minus_twenty(name):
    scaled = GENERATORS[name](20, 50, 5).astype(np.float64) * 2**20
    np.testing.assert_array_equal(scaled, np.rint(scaled))


def test_bytes_do_not_change():
    digests = {
        name: hashlib.sha256(GENERATORS[name](8, 25, 42).tobytes()).hexdigest()[:16] for name in GENERATORS
    }
    assert digests == DIGESTS


def test_clusters_are_denser_than_uniform():
    def nearest(coordinates):
        pairs = np.linalg.norm(coordinates[:, :, None] - coordinates[:, None], axis=-1)
        pairs[:, np.arange(pairs.shape[1]), np.arange(pairs.shape[1])] = np.inf
        return pairs.min(axis=-1).mean()

    assert nearest(clustered(50, 60, 1)) < 0.75 * nearest(uniform(50, 60, 1))


def test_explosion_leaves_a_hole():
    # The disk blown empty has a radius of 0.2 to 0.4, less the few cities folded back into it from outside.
    def largest_hole(coordinates):
        probes = np.stack(np.meshgrid(*[np.linspace(0.3, 0.7, 21)] * 2), axis=-1).reshape(1, -1, 1, 2)
        return np.linalg.norm(probes - coordinates[:, None], axis=-1).min(axis=-1).max(axis=-1)

    assert largest_hole(explosion(40, 200, 2)).mean() > 0.22
    assert largest_hole(uniform(40, 200, 2)).mean() < 0.15


@pytest.mark.parametrize("n", [1, 2, 50, 99])
def test_grid_cities_are_different_crossings(n):
    side = int(np.ceil(np.sqrt(2 * n)))
    for coordinates in grid(10, n, 7).astype(np.float64):
        cells = coordinates * side - 0.5
        np.testing.assert_allclose(cells, np.rint(cells), atol=side * 2**-20)
        assert len({tuple(cell) for cell in np.rint(cells).astype(int)}) == n


def test_ring_is_empty_inside_and_its_radius_varies():
    coordinates = ring(300, 100, 4).astype(np.float64)
    distance = np.linalg.norm(coordinates - coordinates.mean(axis=1, keepdims=True), axis=-1)
    radius = np.median(distance, axis=1)
    assert radius.min() > 0.15
    assert radius.max() < 0.45
    assert radius.std() > 0.04
    assert np.percentile(distance / radius[:, None], 1) > 0.4


@pytest.mark.parametrize("name", GENERATORS)
@pytest.mark.parametrize(
    ("arguments", "message"), [((-1, 5, 0), "-1"), ((3, 0, 0), "n = 0"), ((3, 5, -1), "-1")]
)
def test_bad_arguments(name, arguments, message):
    with pytest.raises(InputError, match=message):
        GENERATORS[name](*arguments)


def test_seed_above_32_bits_is_refused():
    # torch would silently use its low 32 bits.
    with pytest.raises(InputError, match="4294967296"):
        uniform(1, 5, 2**32)


def test_rectangles_lie_both_ways_and_vary():
    coordinates = rectangle(400, 200, 6).astype(np.float64)
    width, height = np.ptp(coordinates, axis=1).T
    assert 0.4 < (width > height).mean() < 0.6
    assert np.maximum(width, height).min() > 0.9
    shorter = np.minimum(width, height)
    assert shorter.min() > 0.17
    assert abs(shorter.mean() - 0.6) < 0.04
    assert shorter.std() > 0.2


def test_turned_squares_fill_the_unit_square_at_every_angle():
    cities = turned(300, 10_000, 6).astype(np.float64)
    assert (cities.min(axis=1) == 0).all()
    assert (cities.max(axis=(1, 2)) == 1).all()
    # A square of side 1, turned by a, is cos a + sin a wide: scaled to fit, its area goes from 1 down to 1/2.
    # The determinant of the cities' covariance has it, whatever the angle.
    area = 12 * np.sqrt([np.linalg.det(np.cov(instance.T)) for instance in cities])
    angle = np.linspace(0, np.pi / 2, 1001)
    expected = 1 / (np.cos(angle) + np.sin(angle)) ** 2
    assert abs(area.mean() - expected.mean()) < 0.03
    assert abs(area.std() - expected.std()) < 0.03


def _nearest(cities):
    """Distances to the nearest other city."""
    pairs = np.linalg.norm(cities[:, None] - cities[None], axis=-1)
    np.fill_diagonal(pairs, np.inf)
    return pairs.min(axis=1)


def _directions(cities):
    """Directions to the nearest other city modulo a quarter: unit numbers at four times the angle."""
    pairs = np.linalg.norm(cities[:, None] - cities[None], axis=-1) + 9 * np.eye(len(cities))
    towards = cities[pairs.argmin(axis=1)] - cities
    return np.exp(4j * np.arctan2(towards[:, 1], towards[:, 0]))


def _made(name, n=200, count=200, seed=9):
    return GENERATORS[name](count, n, seed).astype(np.float64)


@pytest.mark.parametrize("name", STRUCTURED)
def test_structure_is_twin_thin_turned_and_in_whole_units_now_and_then(name):
    instances = _made(name)
    twins = np.array([(_nearest(cities) == 0).mean() for cities in instances])
    assert 0.1 < (twins > 0).mean() < 0.9
    assert 0.02 < (twins > 0.2).mean() < 0.5
    height, width = np.ptp(instances, axis=1).min(axis=1), np.ptp(instances, axis=1).max(axis=1)
    assert (width > 0.9999).all()
    assert height.min() < 0.3
    assert (height > 0.7).mean() > 0.1


@pytest.mark.parametrize("name", STRUCTURED)
@pytest.mark.parametrize(("n", "count"), [(100, 200), (200, 100), (500, 60), (1000, 60)])
def test_places_grow_with_the_cities(name, n, count):
    """Whole units become finer until they hold cities apart: doubled places are the exception."""
    places = np.array([len(np.unique(cities, axis=0)) for cities in _made(name, n, count)]) / n
    assert places.min() > 0.78
    assert (places > 0.95).mean() > 0.75
    assert places.min() < 0.95


@pytest.mark.parametrize("name", STRUCTURED)
def test_units_are_seen_in_a_third(name):
    """Coordinates are multiples of 1 / units, for units as coarse as 50 and as fine as it takes."""
    coarse = []
    for cities in _made(name, 100, 200):
        units = [k for k in range(50, 1000) if abs(cities * k - np.rint(cities * k)).max() < k * 2**-20]
        coarse.append(bool(units))
    assert 0.1 < np.mean(coarse) < 0.4


def test_lattices_lie_in_four_directions_and_have_holes():
    def alignment(name):
        return np.median([abs(_directions(cities).mean()) for cities in _made(name)])

    assert alignment("lattice") > 0.8 > 0.4 > alignment("mixture")

    def unevenness(name):
        return np.median([_nearest(cities).std() / _nearest(cities).mean() for cities in _made(name)])

    assert unevenness("lattice") < 0.5 < unevenness("mixture")


def test_patterns_come_again():
    """A city's difference to its nearest one is that of many others, up to quarters."""
    found = []
    for cities in _made("patterns", count=100):
        pairs = np.linalg.norm(cities[:, None] - cities[None], axis=-1) + 9 * np.eye(len(cities))
        lengths = np.sort(pairs.min(axis=1))
        found.append((np.diff(lengths) < 1e-5).mean())
    assert np.median(found) > 0.5
    assert (np.diff(np.sort(_nearest(uniform(1, 200, 3)[0].astype(np.float64)))) < 1e-5).mean() < 0.4


def test_strings_are_lines():
    """The four nearest cities lie along one direction: the smaller of two variances is small."""
    thin = []
    for cities in _made("strings", count=100):
        pairs = np.linalg.norm(cities[:, None] - cities[None], axis=-1)
        near = cities[np.argsort(pairs, axis=1)[:, :5]]
        values = np.linalg.svd(near - near.mean(axis=1, keepdims=True), compute_uv=False)
        thin.append(np.median(values[:, 1] / np.maximum(values[:, 0], 1e-9)))
    assert np.median(thin) < 0.2
    assert max(thin) > 0.3


def test_mixtures_have_densities_over_two_orders_of_magnitude():
    def ratio(cities):
        kth = np.sort(np.linalg.norm(cities[:, None] - cities[None], axis=-1), axis=1)[:, 5]
        low, high = np.percentile(kth, [5, 95])
        return (high / max(low, 1e-4)) ** 2

    ratios = [ratio(cities) for cities in _made("mixture")]
    assert np.median(ratios) > 100
    assert np.median([ratio(cities) for cities in uniform(50, 200, 1).astype(np.float64)]) < 10
