"""The packaged weights give the mean lengths that they always gave.

``python tests/test_golden.py`` made ``tests/data/golden.json`` with the code of 0.1. It equals the means of
these instances in ``results``, which an H200 computed. Make it anew only when packaged weights change.
"""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from typer.testing import CliRunner

from georoutenet.cli import app
from georoutenet.evaluate.results import read_results

GOLDEN = Path(__file__).parent / "data" / "golden.json"
WEIGHTS = ("georoutenet", "georoutenet-50")
SETS = ("val50", "diag100")
DECODERS = ("greedy", "beam-100")
FIRST = 100
"""Instances of each set."""


def mean_lengths(weights: str, sets: tuple[str, ...], folder: Path) -> dict[str, float]:
    """``{"val50 greedy": 5.73, ...}``: the mean length for each set and decoder, by the command line."""
    options = f"--decoder {','.join(DECODERS)} --limit {FIRST} --device cpu --out {folder}"
    done = CliRunner().invoke(app, ["evaluate", weights, "--set", ",".join(sets), *options.split()])
    assert done.exit_code == 0, done.output
    return {
        f"{name} {decoder}": float(
            read_results(folder / f"{name}-{decoder}-first-{FIRST}.csv.gz").lengths.mean().round(9)
        )
        for name in sets
        for decoder in DECODERS
    }


@pytest.mark.parametrize("name", ["val50", pytest.param("diag100", marks=pytest.mark.slow)])
@pytest.mark.parametrize("weights", WEIGHTS)
def test_packaged_weights_give_the_same_tours(weights: str, name: str, tmp_path: Path) -> None:
    golden = json.loads(GOLDEN.read_text())[weights]
    expected = {cell: length for cell, length in golden.items() if cell.startswith(f"{name} ")}
    assert len(expected) == len(DECODERS)
    assert mean_lengths(weights, (name,), tmp_path) == pytest.approx(expected, rel=1e-5, abs=0)


if __name__ == "__main__":
    found = {}
    for each in WEIGHTS:
        with TemporaryDirectory() as place:
            found[each] = mean_lengths(each, SETS, Path(place))
    GOLDEN.parent.mkdir(exist_ok=True)
    GOLDEN.write_text(json.dumps(found, indent=2) + "\n")
