"""What each decoder setting gives for its time: width, dominance, length weight, temperature and views.

The scores of every instance are computed once, in 32 views, and then decoded with every setting by
``decode_views``, one instance at a time. Times are CPU seconds of one thread, because other work on the
machine then does not count; the time of a setting is that of the network for its views plus that of the
decoder. The results, one row for each set and setting, replace ``results/decoder_settings.csv``.

    python benchmarks/decoder_settings.py [--quick] [--scores FOLDER]

val50 and diag100 are for choosing a setting. TSPLIB is a check of the choice, made where the environment
variable GEOROUTENET_TSPLIB names its folder.
"""

from __future__ import annotations

import argparse
import csv
import datetime
import os
import platform
import subprocess
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

os.environ["NUMBA_NUM_THREADS"] = "1"  # before Numba is imported
os.environ["OMP_NUM_THREADS"] = "1"

import numpy as np
import torch
from torch import Tensor

from georoutenet.decode import Decoding, decode_views, make_views
from georoutenet.evaluate.references import load_references
from georoutenet.io.atomic import atomic_write
from georoutenet.io.datasets import dataset
from georoutenet.io.tsplib import load_tsplib
from georoutenet.model.scores import Scores
from georoutenet.policy.policy import Policy
from georoutenet.policy.weights import load_policy
from georoutenet.problem.instance import Instance
from georoutenet.problem.tour import gap

RESULTS = Path(__file__).parent / "results" / "decoder_settings.csv"
VIEWS = 32
TSPLIB = ("kroA100", "eil101", "lin105", "bier127", "ch130", "pr144", "kroA150", "u159", "d198", "kroB200")


@dataclass(frozen=True)
class Setting:
    """A decoding in the words of the results, with a temperature; ``width`` 0 stands for greedy."""

    views: int = 1
    width: int = 0
    dominance: bool = False
    length_weight: float = 0.0
    temperature: float = 1.0

    @property
    def decoding(self) -> Decoding:
        if not self.width:
            return Decoding(views=self.views)
        of_beam = {"dominance": self.dominance, "length_weight": self.length_weight}
        return Decoding("beam", views=self.views, width=self.width, **of_beam)

    def __str__(self) -> str:
        parts = [f"{self.views} views" if self.views > 1 else "1 view"]
        parts.append(f"beam {self.width}" if self.width else "greedy")
        parts += ["dominance"] if self.dominance else []
        parts += [f"length {self.length_weight:g}"] if self.length_weight else []
        parts += [f"temperature {self.temperature:g}"] if self.temperature != 1 else []
        return ", ".join(parts)


@dataclass(frozen=True)
class Problem:
    """An instance, its best known length, and what the network says of its views."""

    instance: Instance
    reference: float
    views: Tensor  # (VIEWS, n, 2) float32
    start: Tensor  # (VIEWS, n)
    logits: Tensor  # (VIEWS, n, n)
    one_view_ms: float  # CPU time of the network for the first view alone
    all_views_ms: float  # ... and for all of them in one batch

    def network_ms(self, views: int) -> float:
        return self.one_view_ms if views == 1 else self.all_views_ms * views / VIEWS

    def solve(self, setting: Setting) -> tuple[float, float]:
        """Gap in percent and milliseconds of CPU time, the network's not counted."""
        done = 0

        def known(points: Tensor) -> Scores:
            nonlocal done
            part = slice(done, done + len(points))
            done += len(points)
            if not torch.allclose(points, self.views[part], atol=1e-5):
                raise RuntimeError("the views are not in the order of their scores")
            start, logits = self.start[part], self.logits[part]
            if setting.temperature == 1:
                return Scores(start, logits)
            return Scores((start / setting.temperature).log_softmax(1), logits / setting.temperature)

        before = time.process_time()
        found = decode_views(known, [self.instance], setting.decoding)
        seconds = time.process_time() - before
        assert found.lengths is not None
        return float(gap(found.lengths[0, 0].item(), self.reference)), seconds * 1e3


def settings(quick: bool) -> Iterator[Setting]:
    """Everything measured: greedy, one view with each setting, then views alone and with the others."""
    weights = (0.0, 20.0, 60.0, 120.0, 250.0)
    yield from (Setting(views) for views in (1, 4, 8, 16, 32))
    for width in (32, 100) if quick else (32, 100, 300, 1000):
        for dominance in (False, True):
            yield from (Setting(1, width, dominance, weight) for weight in weights)
    for views, width in ((1, 100), (1, 1000), (8, 1000)):
        yield from (Setting(views, width, temperature=heat) for heat in (0.7, 2.0, 5.0))
    for views in (4, 8, 16, 32):
        for width in (256,) if quick else (256, 1000):
            yield Setting(views, width)
            yield Setting(views, width, length_weight=60.0)
            yield from (Setting(views, width, True, weight) for weight in weights)
    if not quick:
        for views in (1, 4, 8, 32):
            yield Setting(views, 4000)
            yield from (Setting(views, 4000, True, weight) for weight in (0.0, 60.0, 120.0))


CONTRASTS = (
    (Setting(1, 100), Setting(1, 100, dominance=True)),
    (Setting(1, 1000), Setting(1, 1000, dominance=True)),
    (Setting(1, 1000), Setting(1, 1000, length_weight=60.0)),
    (Setting(1, 1000), Setting(1, 1000, temperature=5.0)),
    (Setting(1, 1000, True), Setting(1, 1000, True, 60.0)),
    (Setting(8, 1000, True), Setting(8, 1000, True, 60.0)),
    (Setting(8, 1000, True, 60.0), Setting(8, 1000, True, 120.0)),
    (Setting(32, 1000), Setting(8, 1000, True, 60.0)),
    (Setting(16, 1000, True, 60.0), Setting(8, 4000, True, 60.0)),
)
"""Pairs of settings that are compared instance by instance: what the second changes."""


def instances(name: str, count: int) -> Iterator[tuple[Instance, float]]:
    """The first ``count`` instances of a set with their best known lengths."""
    if name == "tsplib":
        for each in TSPLIB[:count]:
            instance = load_tsplib(each)
            assert instance.optimum is not None
            yield instance, float(instance.optimum)
    else:
        coordinates, lengths = dataset(name).coordinates, load_references(name).lengths
        for k in range(count):
            yield Instance(coordinates[k], name=f"{name}-{k}"), float(lengths[k])


def problem(instance: Instance, reference: float, policy: Policy, folder: Path | None) -> Problem:
    """The instance with its scores: from the folder if they are there, else from the network."""
    views = make_views(instance.coordinates, VIEWS).float()
    file = None if folder is None else folder / f"{instance.name}.npz"
    if file is not None and file.exists():
        with np.load(file, allow_pickle=False) as stored:
            start, logits, times = stored["start"], stored["logits"], stored["times"]
        return Problem(
            instance, reference, views, torch.from_numpy(start), torch.from_numpy(logits), *times.tolist()
        )
    with torch.no_grad():
        began = time.process_time()
        policy(views[:1])
        between = time.process_time()
        scores = policy(views)
        ended = time.process_time()
    times = ((between - began) * 1e3, (ended - between) * 1e3)
    if file is not None:
        with atomic_write(file, "wb") as out:
            np.savez(out, start=scores.start.numpy(), logits=scores.logits.numpy(), times=np.array(times))
    return Problem(instance, reference, views, scores.start, scores.logits, *times)


def interval(gaps: np.ndarray) -> tuple[float, float]:
    """95 % bootstrap interval of the mean."""
    chosen = np.random.default_rng(0).integers(len(gaps), size=(10_000, len(gaps)))
    low, high = np.quantile(gaps[chosen].mean(axis=1), (0.025, 0.975))
    return float(low), float(high)


def measure(
    name: str, problems: list[Problem], setting: Setting, facts: dict[str, str]
) -> tuple[dict[str, object], np.ndarray]:
    """One row of the table, and the gap of each instance."""
    problems[0].solve(setting)  # compiled code and memory
    solved = [problem.solve(setting) for problem in problems]
    gaps = np.array([gap for gap, _ in solved])
    decode = float(np.mean([ms for _, ms in solved]))
    network = float(np.mean([problem.network_ms(setting.views) for problem in problems]))
    low, high = interval(gaps)
    print(f"{name:8s} {setting!s:52s} {gaps.mean():7.4f} % [{low:.4f}, {high:.4f}]", end="  ")
    print(f"optimal {np.mean(gaps < 1e-6):4.0%}  {network:7.1f} + {decode:6.2f} ms", flush=True)
    row = {
        **facts,
        "set": name,
        "instances": len(problems),
        **asdict(setting),
        "gap_percent": f"{gaps.mean():.4f}",
        "gap_low": f"{low:.4f}",
        "gap_high": f"{high:.4f}",
        "optimal": f"{np.mean(gaps < 1e-6):.3f}",
        "network_ms": f"{network:.2f}",
        "decode_ms": f"{decode:.3f}",
        "total_ms": f"{network + decode:.2f}",
    }
    return row, gaps


def contrast(name: str, gaps: dict[Setting, np.ndarray]) -> None:
    """Print the paired differences of those settings that were measured."""
    for one, other in CONTRASTS:
        if one in gaps and other in gaps:
            change = gaps[other] - gaps[one]
            low, high = interval(change)
            print(f"{name:8s} {other}, less {one}: {change.mean():.4f} [{low:.4f}, {high:.4f}]", end="  ")
            print(f"better {np.mean(change < -1e-6):.1%}, worse {np.mean(change > 1e-6):.1%}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few instances and settings; nothing is written")
    parser.add_argument("--weights", default="georoutenet-50")
    parser.add_argument(
        "--scores", type=Path, help="keep the network's scores in this folder for the next run"
    )
    options = parser.parse_args()
    torch.set_num_threads(1)
    policy = load_policy(options.weights)
    policy(torch.rand(1, 50, 2))
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    ).stdout.strip()
    facts = {
        "date": datetime.date.today().isoformat(),
        "commit": commit,
        "weights": options.weights,
        "device": f"{os.cpu_count()}-core CPU ({platform.machine()}), one thread",
        "torch": torch.__version__,
    }
    counts = {"val50": 200, "diag100": 60, "tsplib": len(TSPLIB)}
    if options.quick:
        counts = {"val50": 4, "diag100": 2, "tsplib": 1}
    if not os.environ.get("GEOROUTENET_TSPLIB"):
        counts.pop("tsplib")
    if options.scores is not None:
        options.scores.mkdir(parents=True, exist_ok=True)
    rows = []
    for name, count in counts.items():
        problems = [problem(*each, policy, options.scores) for each in instances(name, count)]
        gaps = {}
        for setting in settings(options.quick):
            row, gaps[setting] = measure(name, problems, setting, facts)
            rows.append(row)
        contrast(name, gaps)
    if not options.quick:
        with atomic_write(RESULTS, "w") as file:
            writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)


if __name__ == "__main__":
    main()
