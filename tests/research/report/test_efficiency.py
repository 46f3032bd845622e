from __future__ import annotations

import math
from dataclasses import fields, replace
from pathlib import Path

import pytest

from georoutenet.errors import InputError
from georoutenet.evaluate.results import Results, write_results
from research.report.efficiency import (
    Measurement,
    is_measurements,
    paper_efficiency,
    read_measurements,
    write_measurements,
)

ONE = Measurement(
    set="val50",
    method="LKH-3",
    weights="",
    decoder="at most 1 s, twice",
    instances=4,
    gap=0.25,
    gap_low=0.125,
    gap_high=0.5,
    probe_seconds=0.001,
    seconds=2.0,
    network_seconds=math.nan,
    decode_seconds=math.nan,
    improve_seconds=math.nan,
    cpu_seconds=1.5,
    batch=1,
    precision="",
    parameters=0,
    peak_device_bytes=math.nan,
    device="an abacus",
    threads=1,
    commit="",
    date="2026-01-01",
)


def test_what_is_written_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a" / "cpu.csv"
    two = replace(
        ONE, method="GeoRouteNet-PG", weights="tiny", network_seconds=1.0, peak_device_bytes=2.0**33
    )
    write_measurements(path, [ONE, two])
    read = read_measurements(path)
    for given, found in zip([ONE, two], read, strict=True):
        for field in fields(Measurement):
            before, after = getattr(given, field.name), getattr(found, field.name)
            assert before == after or (math.isnan(before) and math.isnan(after)), field.name
            assert type(before) is type(after)
    assert read[0].instances_per_second == 2.0
    assert len({each.key for each in read}) == 2
    assert read[0].instance_seconds == 1.5 / 4  # one thread: other programs do not count
    assert read[1].instance_seconds == replace(ONE, threads=2).instance_seconds == 2.0 / 4


def test_kinds_of_files_are_told_apart(tmp_path: Path) -> None:
    write_measurements(tmp_path / "e.csv", [ONE])
    write_results(tmp_path / "r.csv", Results({}, []))
    assert is_measurements(tmp_path / "e.csv")
    assert not is_measurements(tmp_path / "r.csv")
    with pytest.raises(InputError, match=r"r\.csv is not a file of measurements"):
        read_measurements(tmp_path / "r.csv")
    text = (tmp_path / "e.csv").read_text()
    (tmp_path / "e.csv").write_text(text.replace(",4,", ",four,"))
    with pytest.raises(InputError, match=r"e\.csv: a damaged row"):
        read_measurements(tmp_path / "e.csv")
    (tmp_path / "e.csv").write_bytes(text.encode() + b"\xff\xfe")
    with pytest.raises(InputError, match=r"e\.csv cannot be read"):
        read_measurements(tmp_path / "e.csv")


def test_the_papers_rows_agree_with_themselves() -> None:
    counts = {"val50": 10_000, "diag100": 10_000, "tsplib27": 27}
    rows = paper_efficiency()
    assert len(rows) == 3 * 6
    for (set_name, _), row in rows.items():
        assert row.instances_per_second == pytest.approx(counts[set_name] / row.seconds, rel=0.015)
