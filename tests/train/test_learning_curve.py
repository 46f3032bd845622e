"""Learning curves: reading metrics, joining stages, drawing, clear errors."""

from __future__ import annotations

import gzip
import math
from pathlib import Path

import pytest
from tiny import tiny_recipe
from typer.testing import CliRunner

from georoutenet.cli import app
from georoutenet.errors import InputError
from georoutenet.io import unpack
from georoutenet.train.curve import Curve, plot_curves, read_curve
from georoutenet.train.trainer import Trainer


def write(path: Path, lines: list[str]) -> Path:
    path.write_text("step,instances,seconds,greedy_cost,validation\n" + "\n".join(lines) + "\n")
    return path


def test_a_runs_own_metrics(tmp_path: Path) -> None:
    outcome = Trainer(tiny_recipe(), tmp_path / "run").run()
    curve = read_curve(tmp_path / "run")
    assert curve.name == "run"
    assert curve.at["step"][-1] == outcome.step
    assert curve.at["instances"][-1] == 4 * outcome.step
    known = [length for length in curve.validation if not math.isnan(length)]
    assert min(known) == pytest.approx(outcome.best)


def test_compressed_metrics(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = write(tmp_path / "run.csv", ["10,100,1,5.0,", "20,200,2,4.0,4.5"])
    packed = tmp_path / "run.csv.gz"
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    assert read_curve(packed).name == read_curve(plain).name == "run"
    assert read_curve(packed).at == read_curve(plain).at
    with monkeypatch.context() as patch:
        patch.setattr(unpack, "MAX_BYTES", 50)
        with pytest.raises(InputError, match=r"run\.csv\.gz: holds more than 50 bytes"):
            read_curve(packed)
    packed.write_bytes(packed.read_bytes()[:-9])
    with pytest.raises(InputError, match="broken gzip data"):
        read_curve(packed)


def test_stages_follow_one_another(tmp_path: Path) -> None:
    one = read_curve(write(tmp_path / "one.csv", ["10,100,1,5.0,", "20,200,2,4.0,4.5"]))
    two = read_curve(write(tmp_path / "two.csv", ["10,50,4,3.5,3.6"]))
    both = one.then(two)
    assert both.name == "one to two"
    assert both.at == {"instances": [100, 200, 250], "seconds": [1, 2, 6], "step": [10, 20, 30]}
    assert both.then(two).name == "one to two"
    assert both.training == [5.0, 4.0, 3.5]
    assert [both.validation[1], both.validation[2]] == [4.5, 3.6]


def test_what_is_drawn(tmp_path: Path) -> None:
    curve = Curve(
        "a", {"instances": [1e6, 2e6], "seconds": [60, 120], "step": [1, 2]}, [9.0, 8.0], [math.nan, 7.0]
    )
    (ax,) = plot_curves([curve], by="seconds", training=True, lines=[6.5]).axes
    drawn = [(list(line.get_xdata()), list(line.get_ydata())) for line in ax.lines]
    assert drawn[0] == ([1.0, 2.0], [9.0, 8.0])
    assert drawn[1] == ([2.0], [7.0])
    assert drawn[2][1] == [6.5, 6.5]
    assert ax.get_ylim()[0] < 6.5
    unknown = Curve("b", curve.at, [9.0, 8.0], [math.nan, math.nan])
    figure = plot_curves([unknown])
    assert figure.legends[0].get_texts()[0].get_text() == "b: its batches, not validated yet"
    assert list(figure.axes[0].lines[0].get_ydata()) == [9.0, 8.0]  # not an empty picture
    assert figure.axes[0].lines[0].get_marker() in ("", "None")
    stopped = plot_curves([Curve("one", curve.at, [math.nan, 8.0], [math.nan, math.nan])])
    assert stopped.axes[0].lines[0].get_marker() == "o"  # of a single point no line is seen
    with pytest.raises(InputError, match="nothing to draw: no run has a length yet"):
        plot_curves([Curve("c", curve.at, [math.nan] * 2, [math.nan] * 2)])


def test_the_command(tmp_path: Path) -> None:
    one = write(tmp_path / "one.csv", ["10,100,1,5.0,4.75"])
    two = write(tmp_path / "two.csv", ["10,100,1,5.0,"])
    picture = tmp_path / "curve.svg"
    done = CliRunner().invoke(app, ["curve", str(one), str(two), "--output", str(picture), "--line", "4.5"])
    assert done.exit_code == 0, done.output
    assert "one: 10 steps, best validation length 4.75000" in done.output
    assert "two: 10 steps, not validated yet" in done.output
    assert "one: validation" in picture.read_text()


def test_clear_errors(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot read"):
        read_curve(tmp_path / "none.csv")
    (tmp_path / "other.csv").write_text("a,b\n1,2\n")
    with pytest.raises(InputError, match="needs instances"):
        read_curve(tmp_path / "other.csv")
    with pytest.raises(InputError, match="cut off"):
        read_curve(write(tmp_path / "cut.csv", ["10,100,1,5.0,4.75", "20,20"]))
    with pytest.raises(InputError, match="no number"):
        read_curve(write(tmp_path / "word.csv", ["10,100,1,five,"]))
    with pytest.raises(InputError, match="not by 'hours'"):
        plot_curves([], by="hours")


def test_lengths_beyond_all_use_and_names_that_are_formulas(tmp_path: Path) -> None:
    run = tmp_path / "$x_{$"
    run.mkdir()
    write(run / "metrics.csv", ["10,100,1,1e308,-1e308", "20,1e308,inf,nan,4.5"])
    for by in ("instances", "seconds", "step"):
        output = tmp_path / f"{by}.png"
        result = CliRunner().invoke(
            app, ["curve", str(run), "--by", by, "--training", "--output", str(output)]
        )
        assert result.exit_code == 0, result.output
        assert output.exists()
