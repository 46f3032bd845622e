from __future__ import annotations

import io
import sys
import types
from pathlib import Path

import pytest

from georoutenet.errors import MissingDependencyError
from georoutenet.train.log import MetricsFile, PlainLines, ProgressBar, TensorBoard, duration


def test_rows_after_the_checkpoint_are_cut_on_resuming(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    log = MetricsFile(path, ["step", "loss"])
    for step in (10, 20, 30):
        log.append({"step": step, "loss": step / 7})
    before = path.read_text()
    MetricsFile(path, ["step", "loss"], after_step=20).append({"step": 30, "loss": 30 / 7})
    assert path.read_text() == before
    assert before.splitlines()[0] == "step,loss"
    assert len(before.splitlines()) == 4


def test_a_row_cut_short_by_a_crash_is_dropped(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    path.write_text("step,loss\n10,0.5\n2")
    MetricsFile(path, ["step", "loss"], after_step=15)
    assert path.read_text() == "step,loss\n10,0.5\n"


BAD = {
    "not UTF-8": b"20,0.\xff5,1.0",
    "nul": b"20,0.\x005,1.0",
    "quote": b'20,"0.5,1.0',
    "comma": b"20,0,.5,1.0",
    "letter": b"20,0.5,x",
    "step": b"2\xc2\xb2,0.5,1.0",
    "long": b"20," + b"9" * 200_000 + b"x,1.0",
}


@pytest.mark.parametrize("bad", BAD)
def test_a_damaged_row_is_removed_and_named(tmp_path: Path, bad: str) -> None:
    """One bad byte must not keep a run from going on, nor cost more than its row."""
    path = tmp_path / "metrics.csv"
    path.write_bytes(b"step,loss,validation\n10,0.5,3.0\n" + BAD[bad] + b"\n30,0.25,2.0\n40,0.1,1.0\n")
    log = MetricsFile(path, ["step", "loss", "validation"], after_step=30)
    assert path.read_text() == "step,loss,validation\n10,0.5,3.0\n30,0.25,2.0\n"
    assert log.complaint.endswith("damaged lines were removed: 3")
    assert log.last_validation == 2.0


def test_a_damaged_first_line_costs_no_row(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    path.write_bytes(b"step,l\xffss\n10,0.5\n")
    MetricsFile(path, ["step", "loss"], after_step=10)
    assert path.read_text() == "step,loss\n10,0.5\n"


def test_other_columns_are_put_aside(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    path.write_text("time,cost\n10,0.5\n")
    log = MetricsFile(path, ["step", "loss"], after_step=10)
    assert path.read_text() == "step,loss\n"
    assert (tmp_path / "metrics.csv.old").read_text() == "time,cost\n10,0.5\n"
    assert "kept as metrics.csv.old" in log.complaint


def test_a_fresh_run_starts_an_empty_file(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    path.write_text("step,loss\n10,0.5\n")
    MetricsFile(path, ["step", "loss"])
    assert path.read_text() == "step,loss\n"


def test_plain_lines() -> None:
    stream = io.StringIO()
    lines = PlainLines(stream)
    lines.line("hello")
    lines.progress(1200, 0.5, "loss 1")
    assert stream.getvalue() == "hello\nstep 1,200  loss 1\n"


def test_progress_bar_shows_the_latest_numbers() -> None:
    bar = ProgressBar()
    bar.line("one line")
    bar.progress(4, 0.25, "loss 2")
    assert bar.bar.tasks[0].completed == 0.25
    assert bar.bar.tasks[0].description == "step 4  loss 2"
    bar.close()


def test_tensorboard_gets_the_numbers_of_a_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[tuple[object, ...]] = []

    class Writer:
        def __init__(self, folder: str, purge_step: int) -> None:
            written.append((folder, purge_step))

        def add_scalar(self, *arguments: object) -> None:
            written.append(arguments)

        def flush(self) -> None:
            pass

    stand_in = types.SimpleNamespace(SummaryWriter=Writer)
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", stand_in)
    TensorBoard(tmp_path, after_step=8).append({"step": 9, "loss": 0.5, "validation": ""})
    assert written == [(str(tmp_path), 9), ("loss", 0.5, 9)]
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(MissingDependencyError, match="pip install tensorboard"):
        TensorBoard(tmp_path)


@pytest.mark.parametrize(
    ("seconds", "text"), [(93, "93 s"), (720, "12 min"), (12240, "3.4 h"), (181440, "2.1 days")]
)
def test_duration(seconds: float, text: str) -> None:
    assert duration(seconds) == text
