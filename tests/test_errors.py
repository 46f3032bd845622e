"""A warning names the file of whoever called the package, through whichever of its functions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import georoutenet as grn
from georoutenet.errors import GeoRouteNetWarning

TABLES = {
    "z.csv": b"x,y,z\n0,0,1\n1,1,1\n",
    "cp1252.csv": "name,x,y\nä,0,0\nb,1,1\n".encode("cp1252"),
    "both.json": b'[{"x": 0, "y": 0, "lat": 1, "lon": 2}, {"x": 1, "y": 0, "lat": 2, "lon": 2}]',
}


@pytest.mark.parametrize("name", TABLES)
@pytest.mark.parametrize("call", [grn.solve, grn.read_instance])
def test_the_file_of_the_caller(name: str, call: Any, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_bytes(TABLES[name])
    with pytest.warns(GeoRouteNetWarning) as caught:
        call(path)
    assert [each.filename for each in caught] == [__file__]
