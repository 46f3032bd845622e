"""Hostile inputs, seeded: ``make torture`` runs them for minutes, the tests a short slice of the same.

Each attack makes one input from a random generator, gives it to the product and says how that ended. Only
``GeoRouteNetError`` may be raised. Anything else is a finding, printed with the seed that repeats it::

    python -m research.torture --seconds 60 --seed 0
    python -m research.torture --attack instances --seed 1234 --count 1
"""

from __future__ import annotations

import argparse
import collections
import gzip
import io
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from georoutenet.errors import GeoRouteNetError, GeoRouteNetWarning, InputError
from georoutenet.io.files import read_instance, read_tour
from georoutenet.io.names import safe_name
from georoutenet.io.tsplib_format import format_tour, format_tsp
from georoutenet.problem.instance import DistanceRule, Instance
from georoutenet.problem.tour import is_permutation, tour_length

MAX_BYTES = 1 << 16
"""What the readers may unpack here, so that bombs need not be large."""

SNIPPETS = [
    "\n", "\r\n", "\r", " ", "\t", "\0", "-1", "0", "1", "2", "9999999999999999999", "1e308", "-1e400", "inf",
    "nan", "-", "+", ".", "e", ":", "_", "EOF\n", "NAME : ../x\n", "NAME : \x1b[31m[/red]\n", "TYPE : ATSP\n",
    "TYPE : TOUR\n", "DIMENSION : 1000000000000\n", "DIMENSION : -1\n", "EDGE_WEIGHT_TYPE : GEO\n", "\u2028",
    "NODE_COORD_SECTION\n", "DISPLAY_DATA_SECTION\n", "TOUR_SECTION\n", "COMMENT", "ä", "\ufeff", "#", '"',
    ",", ";", "lat,lon\n", "x,y\n", "[", "{", "}", "]", "null", "true", "EDGE_WEIGHT_SECTION\n", "durations",
    "\ud800", "EDGE_WEIGHT_TYPE : EXPLICIT\n", "EDGE_WEIGHT_FORMAT : UPPER_ROW\n", "1e5" * 50, "\n" * 500,
    " " * 500,
]  # fmt: skip

Outcome = str
"""``accepted`` or ``refused``, or what an attack has to say instead."""


def mutated(text: str, source: random.Random) -> str:
    """A few edits: delete, repeat, turn round or overwrite a stretch, put a snippet in, cut the end off."""
    for _ in range(source.randint(0, 4)):
        here = source.randrange(len(text) + 1)
        there = min(len(text), here + source.choice([1, 1, 2, 5, 20, len(text)]))
        stretch, snippet = text[here:there], source.choice(SNIPPETS)
        text = source.choice(
            [
                text[:here] + text[there:],
                text[:here] + stretch[:50] * 2 + text[there:],
                text[:here] + snippet + text[there:],
                text[:here] + snippet + text[here:],
                text[:here] + stretch[::-1] + text[there:],
                text[:here],
                text.swapcase(),
                text.replace("\n", source.choice(["\r\n", " ", "\n\n"])),
            ]
        )
    return text


def mutated_bytes(data: bytes, source: random.Random) -> bytes:
    for _ in range(source.choice([0, 1, 1, 2, 5])):
        here = source.randrange(len(data) + 1)
        size = source.choice([0, 1, 1, 9, len(data)])
        data = data[:here] + source.randbytes(source.choice([0, 1, 1, 4])) + data[here + size :]
    return data


def _text(data: str) -> bytes:
    return data.encode("utf-8", "surrogatepass")


def _matrix(source: random.Random) -> np.ndarray:
    numbers = np.random.default_rng(source.randrange(2**32))
    n = source.randint(1, 8)
    matrix = numbers.integers(0, 100, (n, n)) if source.random() < 0.5 else numbers.random((n, n)).round(3)
    matrix = matrix + matrix.T
    np.fill_diagonal(matrix, 0)
    return matrix


def _instance_text(extension: str, matrix: bool, source: random.Random) -> str:
    if extension == ".tsp":
        rule = source.choice([rule for rule in DistanceRule if rule is not DistanceRule.EUCLIDEAN])
        if rule is DistanceRule.EXPLICIT:
            return format_tsp(Instance(matrix=_matrix(source)))
        n = source.randint(1, 20)
        points = np.array(
            [[source.randint(0, 89), source.randint(0, 89)] for _ in range(n)], dtype=np.float64
        )
        return format_tsp(Instance(points, name="synthetic", rule=rule), comment="written by an attack")
    if extension == ".json":
        table: Any = _matrix(source).tolist()
        return json.dumps(source.choice([table, {"durations": table}, {"distances": table, "code": "Ok"}]))
    separator = source.choice([",", ";", " "])
    if matrix:
        return "\n".join(separator.join(map(str, row)) for row in _matrix(source).tolist())
    header = source.choice(["", "x,y", "lat,lon", "id,lat,lon", "name,x,y"]).replace(",", separator)
    width = header.count(separator) + 1 if header else 2
    rows = [
        separator.join(f"{source.uniform(-80, 80):.3f}" for _ in range(width))
        for _ in range(source.randint(1, 20))
    ]
    return "\n".join([*filter(None, [header]), *rows])


def _npy(matrix: bool, source: random.Random) -> bytes:
    array = _matrix(source) if matrix else np.arange(2 * source.randint(1, 20)).reshape(-1, 2)
    array = array.astype(source.choice(["<f8", ">f4", "<i2", "<f2", "|u1", "<c16", "|S3", "<f8"]))
    stream = io.BytesIO()
    version = source.choice([(1, 0), (2, 0)])
    array = np.asfortranarray(array) if source.random() < 0.5 else array
    np.lib.format.write_array(stream, array, version)
    data = stream.getvalue()
    if source.random() < 0.3:
        blank = source.randint(0, 9000)
        data = data[:8] + blank.to_bytes(2, "little") + b" " * blank + data[10:]
    return data


def _packed(data: bytes, source: random.Random) -> bytes:
    packed = gzip.compress(data, mtime=0)
    odd = source.randrange(8)
    if odd == 0:
        return gzip.compress(data + b"\n" * (4 * MAX_BYTES), mtime=0)
    if odd == 1:
        return packed * source.randint(2, 50)
    return packed + source.randbytes(source.randint(1, 9)) if odd == 2 else packed


def attack_instances(source: random.Random, folder: Path) -> Outcome:
    """Files of cities and distances: every extension, gzipped or not, by name or on standard input."""
    extension, matrix = source.choice([".tsp", ".csv", ".txt", ".npy", ".json"]), source.random() < 0.4
    if extension == ".npy":
        data = _npy(matrix, source)
    else:
        data = _text(mutated(_instance_text(extension, matrix, source), source))
    packed = source.random() < 0.3
    data = mutated_bytes(data, source) if source.random() < 0.3 else data
    data = _packed(data, source) if packed else data
    data = mutated_bytes(data, source) if source.random() < 0.2 else data
    path = folder / f"attack{extension}{'.gz' if source.random() < 0.3 else ''}"
    path.write_bytes(data)
    kept = sys.stdin
    try:
        sys.stdin = SimpleNamespace(buffer=io.BytesIO(data))
        where = "-" if source.random() < 0.3 else path
        instance = read_instance(where, matrix=matrix, max_bytes=MAX_BYTES)
    finally:
        sys.stdin = kept
    assert instance.n >= 1
    assert not instance.has_coordinates or np.isfinite(instance.coordinates).all()
    assert np.isfinite(tour_length(instance, np.arange(instance.n)))
    return "accepted"


def attack_tours(source: random.Random, folder: Path) -> Outcome:
    """Files of tours."""
    n = source.randint(1, 12)
    tour = source.sample(range(n), n)
    texts = {
        ".tour": format_tour(tour, comment="written by an attack"),
        ".csv": "\n".join(["position,city", *(f"{k},{city}" for k, city in enumerate(tour))]),
        ".json": json.dumps(source.choice([tour, {"tour": tour}])),
    }
    extension = source.choice(list(texts))
    data = _text(mutated(texts[extension], source))
    path = folder / f"attack{extension}"
    path.write_bytes(_packed(data, source) if source.random() < 0.2 else data)
    assert is_permutation(read_tour(path, n, max_bytes=MAX_BYTES), n)
    return "accepted"


def attack_names(source: random.Random, folder: Path) -> Outcome:
    """Names that a file gives itself, as file names."""
    alphabet = ["/", "\\", "..", ".", "\0", "~", "C:", "con", " ", "a", "ä", "\u202e", "\x1b", "\ud800", "😀"]
    name = "".join(source.choice(alphabet) for _ in range(source.choice([0, 1, 3, 10, 300])))
    path = folder / f"{safe_name(name)}.json"
    assert path.parent == folder
    assert not os.path.lexists(path)
    path.touch()
    path.unlink()
    return "accepted"


def attack_options(source: random.Random, folder: Path) -> Outcome:
    """Options of ``solve``, one or two of them odd."""
    from georoutenet.solver.options import HELP, read_options

    odd: list[Any] = [
        None, True, "", "a", "x" * 300, "a\0b", "\ud800", -1, 0, 1, 2**70, 1.5, float("inf"), float("nan"),
        1j, b"x", [], [1], {}, (), object(), int, len, np.ones(2), np.float32(2), Path("none"), "beam",
        "cuda:7", "beam-3-views-2", "greedy-views-99999999999", "auto",
    ]  # fmt: skip
    given = {source.choice([*HELP, "other"]): source.choice(odd) for _ in range(source.randint(1, 2))}
    read_options("solve", given)  # type: ignore[arg-type]
    return "accepted"


def attack_weights(source: random.Random, folder: Path) -> Outcome:
    """Weights files with damage, most of it in the header."""
    from georoutenet.policy.weights import load_policy, save_weights

    good = folder / "good.safetensors"
    if not good.exists():
        save_weights(good, load_policy("georoutenet-50"))
    data = good.read_bytes()
    end = 8 + int.from_bytes(data[:8], "little")
    path = folder / "attack.safetensors"
    form = source.randrange(4)
    if form == 0:
        path.write_bytes(data[: source.randrange(len(data))])
    elif form == 1:
        header = _text(mutated(data[8:end].decode().rstrip(" "), source)).ljust(end - 8)
        path.write_bytes(len(header).to_bytes(8, "little") + header + data[end:])
    else:
        here = source.randrange(end if form == 2 else len(data))
        path.write_bytes(data[:here] + bytes([data[here] ^ 1 << source.randrange(8)]) + data[here + 1 :])
    load_policy(path)
    assert path.read_bytes() == data, "damage was not noticed"
    return "accepted"


def attack_solves(source: random.Random, folder: Path) -> Outcome:
    """Solves of odd sets of cities with random options: each tour must be one, of the length it says."""
    from georoutenet.solver.api import solve
    from georoutenet.solver.stages import warm_up

    if "torch" not in sys.modules:
        warm_up()  # so that short limits leave room for the network and the search
    n = source.choice([1, 2, 3, 4, 5, 8, 20, 50])
    points = np.array([[source.gauss(0, 1), source.gauss(0, 1)] for _ in range(n)])
    points = points * source.choice([0.0, 1e-300, 1.0, 1e6, 1e150]) + source.choice([0.0, 1.0, -1e9])
    points[source.randrange(n) if source.random() < 0.3 else n :] = points[0]
    options: dict[str, Any] = {
        "max_seconds": source.choice([0, 0.001, 0.02, 0.1]),
        "seed": source.randrange(2**64),
    }
    options["closed"] = source.random() < 0.7
    options["improve"] = source.random() < 0.7
    for end in ("start", "end"):
        if source.random() < 0.3:
            options[end] = source.randrange(n + 1)
    instance = Instance(points, rule=source.choice(list(DistanceRule)[:4]))
    result = solve(instance, **options)
    assert is_permutation(result.tour, n)
    assert result.length == tour_length(instance, result.tour, closed=options["closed"])
    return "accepted"


def attack_requests(source: random.Random, folder: Path) -> Outcome:
    """Bodies of requests to the playground's service; ``research.abuse`` attacks a whole server."""
    from georoutenet.web import messages
    from georoutenet.web.limits import Limits
    from research.abuse import fuzzed_body

    body, limits = fuzzed_body(source), Limits(cities=50)
    kind = source.randrange(4)
    if kind == 0:
        work = messages.read_work(body, limits)
        assert work.instance.n <= limits.cities
        assert (work.options.max_seconds or 0.0) <= limits.seconds
    elif kind == 1:
        messages.read_scored(body, limits)
    elif kind == 2:
        _, name = messages.exported(body, source.choice([*messages.EXPORTS, "exe"]), limits)
        assert name.rpartition(".")[0] == safe_name(name.rpartition(".")[0])
    else:
        json.dumps(
            messages.read_file(body, source.choice([*messages.FORMATS, "npy"]), limits), allow_nan=False
        )
    return "accepted"


def attack_signals(source: random.Random, folder: Path) -> Outcome:
    """Ctrl-C at any time of the command ``solve``: a status, never a traceback."""
    path = folder / "attack.csv"
    path.write_text("\n".join(f"{source.random()},{source.random()}" for _ in range(30)))
    command = [sys.executable, "-m", "georoutenet", "solve", str(path), "--max-seconds", "1"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    time.sleep(source.uniform(0.05, 2.0))  # earlier, Python itself is not ready
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert "Traceback" not in errors, errors
    assert process.returncode in (130, 0, -signal.SIGINT), (process.returncode, errors)
    return f"status {process.returncode}"


ATTACKS: dict[str, Callable[[random.Random, Path], Outcome]] = {
    "instances": attack_instances,
    "tours": attack_tours,
    "names": attack_names,
    "options": attack_options,
    "weights": attack_weights,
    "solves": attack_solves,
    "requests": attack_requests,
    "signals": attack_signals,
}


def attacked(name: str, seed: int, folder: Path) -> Outcome:
    """How one attack ended; what is raised is a finding."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", GeoRouteNetWarning)
        try:
            return ATTACKS[name](random.Random(f"{name} {seed}"), folder)
        except GeoRouteNetError as error:
            return "refused" if str(error) else "refused without a word"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Hostile inputs, seeded and counted.")
    parser.add_argument("--attack", choices=list(ATTACKS), action="append", help="default: all of them")
    parser.add_argument("--seconds", type=float, default=60.0, help="for each attack")
    parser.add_argument("--count", type=int, default=sys.maxsize, help="at most so many of each attack")
    parser.add_argument("--seed", type=int, default=0, help="of the first; the others follow")
    given = parser.parse_args(arguments)
    if given.count < 1:
        raise InputError(f"--count must be at least 1, got {given.count}")
    found = 0
    for name in given.attack or ATTACKS:
        outcomes: collections.Counter[str] = collections.Counter()
        began = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            for seed in range(given.seed, given.seed + given.count):
                try:
                    outcomes[attacked(name, seed, Path(folder))] += 1
                except Exception:
                    outcomes["FOUND"] += 1
                    sys.stderr.write(f"{name} with seed {seed}:\n{traceback.format_exc()}")
                if time.monotonic() - began > given.seconds:
                    break
        found += outcomes["FOUND"]
        words = ", ".join(f"{count:,} {outcome}" for outcome, count in sorted(outcomes.items()) if count)
        sys.stdout.write(f"{name:10} {outcomes.total():9,} in {time.monotonic() - began:5.0f} s: {words}\n")
        sys.stdout.flush()
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
