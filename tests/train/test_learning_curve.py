from __future__ import annotations

from pathlib import Path

import pytest

from georoutenet.errors import InputError
from georoutenet.train.curve import plot_learning_curve

HEADER = "step,instances,greedy_cost,validation\n"


def test_two_stages_become_one_picture(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(HEADER + "1,64,6.5,\n2,128,6.0,6.1\n")
    (tmp_path / "b.csv").write_text(HEADER + "1,64,5.9,5.95\n")
    plot_learning_curve(
        [tmp_path / "a.csv", tmp_path / "b.csv"], tmp_path / "c.png", reference=5.8, label="goal"
    )
    assert (tmp_path / "c.png").read_bytes().startswith(b"\x89PNG")


def test_another_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x,y\n1,2\n")
    with pytest.raises(InputError, match="not a metrics file"):
        plot_learning_curve([tmp_path / "a.csv"], tmp_path / "c.png")
