from __future__ import annotations

from pathlib import Path

import pytest

from georoutenet.cli import checkout
from georoutenet.errors import GeoRouteNetError

ROOT = Path(__file__).parents[2]


def test_the_repository_is_found_around_the_package_and_in_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert checkout.research("report.make", "tables").make_page
    monkeypatch.setattr(checkout, "BESIDE_SOURCE", tmp_path)
    monkeypatch.chdir(ROOT)
    assert checkout.research("references.make", "reference").make_references


def test_without_a_checkout_the_command_says_what_it_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkout, "BESIDE_SOURCE", tmp_path)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(GeoRouteNetError, match="'georoutenet tables' needs a checkout of the repository"):
        checkout.research("report.make", "tables")
    (tmp_path / "research").mkdir()  # somebody's own folder of that name
    with pytest.raises(GeoRouteNetError, match="needs a checkout"):
        checkout.research("report.make", "tables")
