"""The paper's budget beside an eighth of it, from made-up metrics."""

from __future__ import annotations

import gzip
from pathlib import Path

from georoutenet.evaluate.references import load_references
from research.report.budget import budget


def write(folder: Path, name: str, gaps: dict[int, float | None]) -> None:
    """Metrics of a run with these gaps in percent; a step without one was only logged."""
    mean = load_references("val50").mean
    rows = [f"{step},{'' if gap is None else mean * (1 + gap / 100)}" for step, gap in gaps.items()]
    (folder / f"{name}.csv.gz").write_bytes(gzip.compress("\n".join(["step,validation", *rows]).encode()))


def test_the_first_eighth_is_compared_at_the_same_validations(tmp_path: Path) -> None:
    write(tmp_path, "paper-georoutenet-mcs", {1: None, 10: 3, 20: 2, 25: 2.5})
    write(tmp_path, "paper-georoutenet-mcs-seed2", {10: 3, 20: 2.25, 25: 2.125})
    write(tmp_path, "paper-georoutenet-pg", {10: 3})
    assert budget(tmp_path) == []
    write(tmp_path, "paper-georoutenet-mcs-160m", {5: 9, 10: 8, 15: 1.5, 20: 4, 25: 1.75, 200: 1, 205: 1.25})
    rows = [[cell.strip() for cell in line.split("|")[2:-1]] for line in budget(tmp_path)]
    assert rows[2:6] == [
        ["paper-georoutenet-mcs", "3", "25", "2.000"],
        ["paper-georoutenet-mcs-seed2", "3", "25", "2.125"],
        ["paper-georoutenet-mcs-160m", "3", "25", "1.750"],
        ["paper-georoutenet-mcs-160m", "7", "205", "1.000"],
    ]
