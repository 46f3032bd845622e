"""The page's files, as far as they can be checked without a browser."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from georoutenet.solver.options import SolveOptions, read_options
from georoutenet.web.app import STATIC

FILES = sorted(path for path in STATIC.iterdir() if path.is_file())


def test_page_is_small() -> None:
    assert sum(path.stat().st_size for path in FILES) < 100_000


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_file_is_short_and_names_no_other_host(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert len(text.splitlines()) < 500
    assert set(re.findall(r"https?://[^\s\"'`<>)]+", text)) <= {"http://www.w3.org/2000/svg"}


def test_page_keeps_to_its_content_security_policy() -> None:
    page = (STATIC / "index.html").read_text(encoding="utf-8")
    assert not re.search(r"<style|\sstyle=|\son\w+=|<script(?![^>]*\ssrc=)", page)


def test_modules_import_only_what_is_there() -> None:
    names = {path.name for path in FILES}
    for path in FILES:
        text = path.read_text(encoding="utf-8")
        asked = re.findall(r'from "\./([\w.]+)"', text) + re.findall(r'(?:src|href)="static/([\w.]+)"', text)
        assert set(asked) <= names, path.name


def test_first_tours_are_options_of_solve() -> None:
    text = (STATIC / "methods.js").read_text(encoding="utf-8")
    found = re.findall(r"options: \{([^}]*)\}", text)
    assert len(found) >= 5
    for each in found:
        pairs = (pair.split(":") for pair in each.split(","))
        given = {name.strip(): value.strip().strip('"') for name, value in pairs}
        options = {name: int(value) if value.isdigit() else value for name, value in given.items()}
        assert isinstance(read_options("solve", options), SolveOptions)  # type: ignore[arg-type]
