"""The examples in docs/solving.md with customers and with a routing service's table do what the page says."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import georoutenet as grn
from georoutenet.errors import GeoRouteNetWarning

PAGE = Path(__file__).parent.parent / "docs" / "solving.md"
if not PAGE.exists():
    pytest.skip("the documentation is not part of this installation", allow_module_level=True)


def blocks(language: str, title: str = "Your own distances") -> list[str]:
    section = PAGE.read_text(encoding="utf-8").partition(f"## {title}\n")[2].partition("\n## ")[0]
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


def test_the_customers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sheet of the page in Excel's encoding, and the ids of its commands."""
    monkeypatch.chdir(tmp_path)
    sheet = blocks("", "From a spreadsheet")[0]
    Path("customers.csv").write_bytes(sheet.encode("cp1252"))
    with pytest.warns(GeoRouteNetWarning, match="Windows-1252"):
        result = grn.solve("customers.csv", start="K002")
    assert [visit["Name"] for visit in result.visits()] == ["Groß & Söhne", "Café Müller"]
    Path("customers.csv").write_text(sheet, encoding="utf-8")
    assert grn.read_instance("customers.csv", id_column="Name").city("Café Müller") == 0


def test_the_notebook(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pandas", reason="pandas is not installed")
    monkeypatch.chdir(tmp_path)
    Path("customers.csv").write_text(blocks("", "From a spreadsheet")[0], encoding="utf-8")
    (example,) = blocks("python", "In a notebook")
    names: dict[str, object] = {}
    exec(example, names)
    assert eval("result.to_frame().index.tolist() == ['K001', 'K002']", names)
