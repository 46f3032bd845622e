from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from georoutenet.io.names import LONGEST, safe_name


@pytest.mark.parametrize("name", ["berlin52", "us capitals (48)", "Köln-Süd", "a.b", "x_y", "東京", "-rf"])
def test_ordinary_names_stay(name: str) -> None:
    assert safe_name(name) == name


@pytest.mark.parametrize(
    ("name", "safe"),
    [
        ("../victim/settings", "_victim_settings"),
        ("/etc/passwd", "_etc_passwd"),
        ("C:\\Windows\\win.ini", "C__Windows_win.ini"),
        ("..", "instance"),
        ("", "instance"),
        (" . ", "instance"),
        (".hidden", "hidden"),
        ("a\0b", "a_b"),
        ("a\x1b[31m\n", "a_[31m_"),
        ("a\u202eb", "a_b"),
        ("a\ud800", "a_"),
        ("nul", "_nul"),
        ("CON.tsp", "_CON.tsp"),
        ("what? *", "what_ _"),
        ("Ko\u0308ln", "Köln"),
    ],
)
def test_other_names_become_file_names(name: str, safe: str) -> None:
    assert safe_name(name) == safe


def test_long_names_are_cut_and_stay_different() -> None:
    first, second = safe_name("ä" * 500 + "1"), safe_name("ä" * 500 + "2")
    assert first != second
    assert len(first.encode()) <= LONGEST
    assert first.startswith("ää")


@given(st.text(max_size=400))
@example("." * 300)
@example("con" + " " * 200)
def test_any_name_is_one_component(name: str) -> None:
    safe = safe_name(name)
    assert Path("folder", f"{safe}.json").parent == Path("folder")
    assert os.path.basename(safe) == safe
    assert safe.isprintable()
    assert safe.strip(" .") == safe
    assert safe
    assert len(safe.encode()) <= LONGEST + 1  # a device's name grows by one
    assert safe_name(safe) == safe
