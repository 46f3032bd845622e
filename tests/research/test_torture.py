"""A short slice of ``make torture``."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import pytest

from research.torture import overshoot, run, tally
from research.torture.run import ATTACKS, KINDS, NEEDS, attacked, left_out, main

COUNTS = {
    "instances": 300,
    "tours": 300,
    "names": 300,
    "weights": 25,
    "results": 100,
    "exports": 100,
    "options": 1000,
    "arrays": 300,
    "frames": 300,
    "solves": 40,
    "requests": 500,
    "batches": 40,
    "gpu": 16,
    "gpu_sizes": 6,
    "bulk": 20,
    "bulk_folders": 12,
    "training": 1,
    "writing": 10,
    "bulk_kills": 1,
    "commands": 2,
    "first_calls": 1,
}


SLOW = {"bulk_kills"}
"""Each input takes long, and tests of the same thing run among those of their own."""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if name in SLOW else name for name in ATTACKS]
)
def test_a_slice_of_each_attack(name: str, tmp_path: Path) -> None:
    """Nothing foreign is raised, and the inputs are neither harmless nor all refused."""
    if reason := left_out(name):
        pytest.skip(reason)
    if KINDS[name] in ("kills", "signals") and os.name == "nt":
        pytest.skip("needs POSIX signals")
    before = tally[KINDS[name]]
    outcomes = Counter(attacked(name, seed, tmp_path) for seed in range(COUNTS[name]))
    assert outcomes.total() == COUNTS[name]
    assert tally[KINDS[name]] - before >= outcomes["accepted"]
    if KINDS[name] in ("kills", "signals"):
        assert tally[KINDS[name]] > before
    elif name == "bulk_folders":
        assert outcomes.keys() <= {"mended", "refused", "kept"}
        assert outcomes["mended"] > 5
    elif name != "names":
        assert outcomes.keys() - {"not a frame"} == {"accepted", "refused"}
        assert min(outcomes["accepted"], outcomes["refused"]) >= COUNTS[name] // 50


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
    out = capsys.readouterr().out
    assert "names                2 in     0 s: 2 accepted" in out
    assert "inputs             2\nsolves             0\nkills              0\nsignals            0\n" in out


def test_what_needs_a_missing_package_is_left_out_and_no_finding(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(NEEDS, "frames", "no_such_package")
    assert main(["--attack", "frames", "--count", "2"]) == 0
    out = capsys.readouterr().out
    assert "frames       left out: no_such_package is not installed\n" in out
    assert "inputs             0\n" in out


def test_the_table_says_by_how_much_limits_were_exceeded(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--attack", "solves", "--count", "5"]) == 0
    exceeded = [line for line in capsys.readouterr().out.split("\n") if line.startswith("limits exceeded")]
    assert len(exceeded) == 1
    assert f"at most {1000 * max(overshoot):.0f} ms" in exceeded[0]


def test_processes_share_the_seeds(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["--attack", "names", "--attack", "options", "--count", "31", "--processes", "2"]) == 0
    out = capsys.readouterr().out
    assert out.count(" 31 in ") == 2
    assert "inputs            62\n" in out
    crew = run.Crew(2)
    monkeypatch.setattr(run, "LONGEST", 0.0)
    hung = crew.spend("names", range(5, 10), 0.0)
    assert (hung.outcomes["FOUND"], len(hung.findings)) == (2, 2)
    assert "names, seeds range(6, 10, 2): a process ended: TimeoutError()" in hung.findings[1]
    monkeypatch.undo()
    assert crew.spend("names", range(5, 10), 60.0).outcomes == {"accepted": 5}
    crew.end()
