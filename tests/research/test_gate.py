"""The gate between releases lets nothing worse through than its margins say."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest

FIGURES = {"import_s": 0.03, "first_tour_s": 9.0, "test50_per_s": 160.0, "test100_per_s": 50.0}
FIGURES |= {"test50_gap": 0.0, "test100_gap": 0.001, "test1000_gap": 0.1}
FIGURES |= {"val50_greedy_gap": 0.54, "val50_beam_gap": 0.25}
LAST = {name: str(value) for name, value in FIGURES.items()} | {"version": "0.2.0", "commit": "abc1234"}


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    return importlib.import_module("gate")


def test_every_figure_has_a_margin(gate: Any) -> None:
    assert set(gate.MARGINS) == set(FIGURES)
    assert gate.compare(FIGURES, LAST, True) == []


@pytest.mark.parametrize(
    ("figure", "bad", "good"),
    [("first_tour_s", 11.3, 11.2), ("test50_per_s", 135.0, 137.0), ("test1000_gap", 0.151, 0.149)],
)
def test_what_is_worse_by_more_than_its_margin_is_named(
    gate: Any, figure: str, bad: float, good: float
) -> None:
    assert gate.compare({**FIGURES, figure: good}, LAST, True) == []
    (complaint,) = gate.compare({**FIGURES, figure: bad}, LAST, True)
    assert complaint.startswith(f"{figure}: {bad:.4g}, was {FIGURES[figure]:.4g} in 0.2.0")


def test_times_of_other_hardware_are_not_compared(gate: Any) -> None:
    assert gate.compare({**FIGURES, "first_tour_s": 90.0, "test50_per_s": 1.0}, LAST, False) == []
    assert len(gate.compare({**FIGURES, "val50_beam_gap": 1.0}, LAST, False)) == 1


def test_a_worse_row_is_not_what_the_next_run_compares_with(
    gate: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A second run passed, since it was compared with the bad row of the first."""
    for module in (gate, importlib.import_module("rows")):
        monkeypatch.setattr(module, "RESULTS", tmp_path)
    rows = lambda: len((tmp_path / "gate.csv").read_text().splitlines()) - 1  # noqa: E731
    monkeypatch.setattr(gate, "measure", lambda: FIGURES)
    gate.main([])
    assert rows() == 1
    monkeypatch.setattr(gate, "measure", lambda: {**FIGURES, "test1000_gap": 0.2})
    for _ in range(2):
        with pytest.raises(SystemExit, match=r"no row is written:\ntest1000_gap: 0.2, was 0.1 in"):
            gate.main([])
    assert rows() == 1
    gate.main(["--accept"])
    gate.main([])
    assert rows() == 3
