"""The documentation's pictures are those of one command, and none is left over."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from PIL import Image

from georoutenet.errors import InputError
from research.pictures import IMAGES, ROOT, all_pictures, draw_all

PAGES = [ROOT / "README.md", ROOT / "research" / "log.md", *sorted((ROOT / "docs").glob("*.md"))]


def test_every_picture_is_drawn_by_the_command_and_shown_on_a_page() -> None:
    names = {path.stem for path in IMAGES.glob("*.png")}
    assert names == set(all_pictures())
    text = "".join(page.read_text(encoding="utf-8") for page in PAGES)
    shown = set(re.findall(r"\]\([^)]*images/([\w-]+)\.png\)", text))
    assert shown == names


def test_pictures_are_small() -> None:
    assert {path.name: size for path in IMAGES.glob("*.png") if (size := path.stat().st_size) > 150_000} == {}


@pytest.mark.parametrize(
    "name", ["bulk", "many-instances", "training-georoutenet-50", "distributions", "results-time"]
)
def test_some_are_drawn_again(name: str, tmp_path: Path) -> None:
    assert draw_all([name], tmp_path) == []
    with Image.open(tmp_path / f"{name}.png") as new, Image.open(IMAGES / f"{name}.png") as kept:
        width, height = kept.size
        assert new.size == pytest.approx((width, height), rel=0.1)  # other fonts, other widths


def test_unknown_names_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no picture is called heroes; there are bulk, "):
        draw_all(["heroes"], tmp_path)
