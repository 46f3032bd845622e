from __future__ import annotations

from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from PIL import Image

from georoutenet.plot import save
from research.report.shrink import shrink


def test_a_picture_gets_smaller_and_looks_the_same(tmp_path: Path) -> None:
    figure = Figure()
    figure.subplots().plot(np.sin(np.arange(300) / 9), label="a curve")
    path = tmp_path / "curve.png"
    save(figure, path)
    before, size = np.asarray(Image.open(path).convert("RGB"), dtype=int), path.stat().st_size
    shrink(path)
    after = np.asarray(Image.open(path).convert("RGB"), dtype=int)
    assert path.stat().st_size < 0.7 * size
    assert np.abs(after - before).mean() < 0.5
    small = path.read_bytes()
    shrink(path)
    assert path.read_bytes() == small
