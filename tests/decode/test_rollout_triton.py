from __future__ import annotations

import os
from itertools import permutations

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from georoutenet.errors import InputError

# Without a GPU the kernels run in Triton's interpreter, which must be asked for before the first import.
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"
pytest.importorskip("triton", reason="triton is not installed")

from georoutenet.decode.gpu.rollout import greedy, philox, rollout, rollout_reference

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def random_scores(batch: int, n: int, seed: int = 0, scale: float = 2.0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    start = torch.randn(batch, n, generator=generator).log_softmax(1)
    return start.to(DEVICE), (torch.randn(batch, n, n, generator=generator) * scale).to(DEVICE)


def tour_probabilities(start: Tensor, logits: Tensor) -> dict[tuple[int, ...], float]:
    """Eq. tour_factorization for every permutation of a tiny instance."""
    result = {}
    for tour in permutations(range(len(start))):
        p = start.double()[tour[0]].exp().item()
        for i in range(len(tour) - 1):
            row = logits.double()[tour[i]]
            p *= (row[tour[i + 1]] - row[list(tour[i + 1 :])].logsumexp(0)).exp().item()
        result[tour] = p
    return result


def chi_square_pvalue(tours: Tensor, probabilities: dict[tuple[int, ...], float]) -> float:
    cities, counts = np.unique(tours.cpu().numpy(), axis=0, return_counts=True)
    seen = {tuple(map(int, tour)): count for tour, count in zip(cities, counts, strict=True)}
    expected = np.array(list(probabilities.values())) * len(tours)
    observed = np.array([seen.get(tour, 0) for tour in probabilities])
    assert observed.sum() == len(tours)
    return float(stats.chisquare(observed, expected * observed.sum() / expected.sum()).pvalue)


@pytest.mark.parametrize(
    ("counter", "key", "words"),
    [  # the known answers published with the generator
        ([0] * 4, 0, [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
        ([0xFFFFFFFF] * 4, -1, [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]),
        (
            [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
            0x299F31D0A4093822,
            [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1],
        ),
    ],
)
def test_philox_known_answers(counter: list[int], key: int, words: list[int]) -> None:
    c0, c1, c2, c3 = torch.tensor(counter)[:, None]
    assert [int(word) for word in philox(key, c0, c1, c2, c3)] == words


@pytest.mark.parametrize(
    ("batch", "n", "samples"),
    [(1, 1, 2), (2, 2, 3), (3, 3, 0), (1, 4, 5), (2, 5, 1), (2, 7, 6), (3, 12, 3), (1, 33, 2), (1, 70, 1)],
)
def test_equals_the_reference(batch: int, n: int, samples: int) -> None:
    start, logits = random_scores(batch, n)
    tours = rollout(start, logits, samples=samples, seed=2**35 + 17)
    assert tours.shape == (batch, samples + 1, n)
    assert tours.dtype == torch.int64
    assert torch.equal(tours.sort(dim=2).values.cpu(), torch.arange(n).expand(batch, samples + 1, n))
    expected = rollout_reference(start.cpu(), logits.cpu(), samples=samples, seed=2**35 + 17)
    assert torch.equal(tours[:, -1].cpu(), expected[:, -1])
    if DEVICE == "cpu":  # the GPU's logarithm is an approximate one, so there a near tie may fall otherwise
        assert torch.equal(tours, expected)


def test_greedy_takes_the_largest_unvisited_score() -> None:
    start, logits = random_scores(3, 9, seed=4)
    for instance, tour in enumerate(greedy(start, logits).tolist()):
        assert tour[0] == start[instance].argmax()
        for i in range(8):
            row = logits[instance, tour[i]]
            assert tour[i + 1] == max(tour[i + 1 :], key=lambda j: float(row[j]))


def test_ties_go_to_the_lowest_city_also_between_signed_zeros() -> None:
    start, logits = torch.zeros(1, 6, device=DEVICE), torch.zeros(1, 6, 6, device=DEVICE)
    start[0, 0] = logits[0, :, :4] = -0.0
    assert greedy(start, logits).tolist() == [[0, 1, 2, 3, 4, 5]]
    assert greedy(start, torch.full_like(logits, -3.5)).tolist() == [[0, 1, 2, 3, 4, 5]]


def test_a_city_of_probability_zero_is_taken_last_and_never_twice() -> None:
    start, logits = random_scores(2, 6)
    logits[:, :, 2] = -torch.inf
    start[:, 2] = -torch.inf
    tours = rollout(start, logits, samples=5, seed=1)
    assert (tours[..., -1] == 2).all()
    assert (tours.sort(dim=2).values.cpu() == torch.arange(6)).all()


def test_half_precision_logits_and_short_integers() -> None:
    start, logits = random_scores(2, 8)
    halves = logits.bfloat16()
    tours = rollout(start, halves, samples=3, seed=9, dtype=torch.int16)
    assert tours.dtype == torch.int16
    assert torch.equal(tours.long(), rollout(start, halves.float(), samples=3, seed=9))


def test_the_seed_decides_and_the_launch_shape_does_not() -> None:
    start, logits = random_scores(3, 6, scale=0.5)
    tours = rollout(start, logits, samples=4, seed=1)
    for elements in (16, 512):
        assert torch.equal(tours, rollout(start, logits, samples=4, seed=1, elements=elements))
    seed = torch.tensor([1], dtype=torch.int64, device=DEVICE)
    assert torch.equal(tours, rollout(start, logits, samples=4, seed=seed))
    other = rollout(start, logits, samples=4, seed=2)
    assert not torch.equal(tours[:, :-1], other[:, :-1])
    assert torch.equal(tours[:, -1], other[:, -1])


def test_sampling_follows_the_tour_probabilities() -> None:
    start, logits = random_scores(1, 4, seed=3, scale=1.0)
    tours = rollout(start, logits, samples=6000, seed=5, elements=16384)[0, :-1]
    assert chi_square_pvalue(tours, tour_probabilities(start[0].cpu(), logits[0].cpu())) > 1e-3


def test_wrong_inputs_are_refused() -> None:
    start, logits = random_scores(2, 5)
    with pytest.raises(InputError, match=r"\(2, 5, 5\)"):
        rollout(start, logits[:, :, :4], samples=1, seed=0)
    with pytest.raises(InputError, match="samples"):
        rollout(start, logits, samples=-1, seed=0)
    with pytest.raises(InputError, match="seed"):
        rollout(start, logits, samples=1, seed=torch.tensor([1, 2], device=DEVICE))


@pytest.mark.gpu
def test_greedy_on_the_gpu_is_the_one_on_the_cpu() -> None:
    start, logits = random_scores(10_000, 50, seed=1)
    expected = rollout_reference(start.cpu(), logits.cpu(), samples=0, seed=0)[:, 0]
    assert torch.equal(greedy(start, logits).cpu(), expected)


@pytest.mark.gpu
@pytest.mark.parametrize("n", [100, 200, 1000, 2500])
def test_long_tours_on_the_gpu(n: int) -> None:
    start, logits = random_scores(2, n, seed=n)
    tours = rollout(start, logits, samples=3, seed=n).cpu()
    expected = rollout_reference(start.cpu(), logits.cpu(), samples=3, seed=n)
    assert torch.equal(tours[:, -1], expected[:, -1])
    assert (tours.sort(dim=2).values == torch.arange(n)).all()


@pytest.mark.gpu
def test_most_samples_on_the_gpu_are_those_of_the_cpu() -> None:
    start, logits = random_scores(200, 20, seed=2)
    tours = rollout(start, logits, samples=48, seed=2).cpu()
    expected = rollout_reference(start.cpu(), logits.cpu(), samples=48, seed=2)
    assert (tours == expected).all(dim=2).float().mean() > 0.99


@pytest.mark.gpu
@pytest.mark.parametrize("n", [3, 5])
def test_a_million_samples_follow_the_tour_probabilities(n: int) -> None:
    start, logits = random_scores(1, n, seed=n, scale=1.0)
    tours = rollout(start, logits, samples=1_000_000, seed=n)[0, :-1]
    assert chi_square_pvalue(tours, tour_probabilities(start[0].cpu(), logits[0].cpu())) > 1e-3


@pytest.mark.gpu
def test_replays_in_a_graph_with_new_scores_and_a_new_seed() -> None:
    start, logits = random_scores(16, 50, seed=6)
    seed = torch.tensor([1], dtype=torch.int64, device="cuda")
    rollout(start, logits, samples=8, seed=seed)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        tours = rollout(start, logits, samples=8, seed=seed)
    for value in (2, 3):
        seed.fill_(value)
        logits.copy_(random_scores(16, 50, seed=value)[1])
        graph.replay()
        assert torch.equal(tours, rollout(start, logits, samples=8, seed=value))
