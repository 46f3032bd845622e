"""A short slice of ``make torture``."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from research.torture import ATTACKS, attacked, main

COUNTS = {
    "instances": 600,
    "tours": 300,
    "names": 300,
    "options": 2000,
    "weights": 40,
    "solves": 60,
    "requests": 1000,
    "signals": 2,
}


@pytest.mark.parametrize("name", ATTACKS)
def test_a_slice_of_each_attack(name: str, tmp_path: Path) -> None:
    """Nothing foreign is raised, and the inputs are neither harmless nor all refused."""
    outcomes = Counter(attacked(name, seed, tmp_path) for seed in range(COUNTS[name]))
    assert outcomes.total() == COUNTS[name]
    if name in ("names", "signals"):
        return
    assert outcomes.keys() == {"accepted", "refused"}
    assert min(outcomes.values()) >= COUNTS[name] // 50


def test_findings_are_counted_and_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(ATTACKS, "names", lambda source, folder: str(1 // 0))
    assert main(["--attack", "names", "--count", "3", "--seed", "5"]) == 1
    out, err = capsys.readouterr()
    assert "3 FOUND" in out
    assert [f"names with seed {seed}:" in err for seed in (4, 5, 6, 7, 8)] == [False, True, True, True, False]
    monkeypatch.setitem(ATTACKS, "names", lambda source, folder: "accepted")
    assert main(["--attack", "names", "--count", "2"]) == 0
    assert "names              2 in     0 s: 2 accepted" in capsys.readouterr().out
