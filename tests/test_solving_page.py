"""The example with a routing service's table in docs/solving.md works and gives what its comments say."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import georoutenet as grn

PAGE = Path(__file__).parent.parent / "docs" / "solving.md"
if not PAGE.exists():
    pytest.skip("the documentation is not part of this installation", allow_module_level=True)


def blocks(language: str) -> list[str]:
    section = PAGE.read_text(encoding="utf-8").partition("## Your own distances")[2].partition("\n## ")[0]
    return re.findall(rf"```{language}\n(.*?)```", section, re.DOTALL)


def test_the_example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (table,), (_, example) = blocks("json"), blocks("python")
    Path("table.json").write_text(table, encoding="utf-8")
    names: dict[str, object] = {}
    exec(example, names)
    said = re.findall(r"^(\S+) +# ([\d.]+) seconds", example, re.MULTILINE)
    assert len(said) == 2
    for expression, seconds in said:
        assert eval(expression, names) == float(seconds)
    with pytest.raises(grn.InputError, match=r"table\.json: the matrix is asymmetric.*Asymmetric"):
        grn.read_instance("table.json", matrix=True)


def test_the_file_of_a_symmetric_table(tmp_path: Path) -> None:
    answer = json.loads(blocks("json")[0])
    durations = answer["durations"]
    answer["durations"] = [
        [min(a, b) for a, b in zip(row, column, strict=True)]
        for row, column in zip(durations, zip(*durations, strict=True), strict=True)
    ]
    (tmp_path / "table.json").write_text(json.dumps(answer))
    instance = grn.read_instance(tmp_path / "table.json", matrix=True)
    result = grn.solve(instance, stop=grn.MaxIterations(50))
    assert type(result.length) is int
    result.save(tmp_path / "tour.geojson")
    result.plot(tmp_path / "tour.png")
    line = json.loads((tmp_path / "tour.geojson").read_text())["features"][0]
    assert line["properties"]["length"] == result.length
    places = [each["location"] for each in answer["sources"]]
    assert line["geometry"]["coordinates"][:-1] == [places[city] for city in result.tour]
